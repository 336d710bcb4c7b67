"""The server: what it adds to the same requests in process, and what many users at once gain. All over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import attrs

from tests.bench import commands
from tests.bench.line import Line, paired
from tests.bench.ours import DEPLOYMENT, configured
from tests.bench.worker import Missing, Worker

SERVER = "framework.cli.serve"
ROWS, USERS, LEAVING = 8, 32, 500
TOKENS = 24  # of each reply
PROMPT = "Write a long story about a sailor."
Say = Callable[[str], None]


def measure(folder: Path, threads: int, rounds: int, say: Say) -> list[Line]:
    """Lines for int4 engines of `ROWS` rows, which are built in `folder`."""
    say(f"building int4 engines of {ROWS} rows")
    built = (DEPLOYMENT, f"build.max_batch_size={ROWS}", f"engine_dir={folder}")
    commands.command(*built, module=commands.BUILD)
    first = Line(name="server, added to the first token", unit="ms", at_most=5)
    file = Line(
        name=f"server, {USERS} requests at once", unit="tokens/s", peer_name="the same in process", at_least=0.97
    )
    users = Line(name=f"server, {USERS} users", unit="tokens/s", peer_name="one user", at_least=2.2)
    late = Line(name="server, a late short request: first token after its prompt's time", unit="steps", at_most=3)
    rows = Line(name=f"server, {LEAVING} requests of clients that leave: places taken", unit="requests", at_most=0)
    memory = Line(name="server, memory after them", unit="MB", peer_name="before", at_most=1.1)
    try:
        with Worker(InProcess, folder, threads) as local, server(folder, threads) as running:
            found = asyncio.run(_rounds(local, running, min(rounds, 3), say))
            before, after, left = asyncio.run(_leave(running, say))
    except (Missing, RuntimeError) as missing:
        return [attrs.evolve(line, missing=str(missing)) for line in (first, file, users, late, rows, memory)]
    added = [1e3 * (ours - peer) for ours, peer in zip(found["first"], found["local first"], strict=True)]
    return [
        attrs.evolve(first, ours=median(added)),
        paired(file, found["many"], found["local many"]),
        paired(users, found["many"], found["one"]),
        attrs.evolve(late, ours=median(found["late"])),
        attrs.evolve(rows, ours=left),
        paired(memory, [after / 1e6], [before / 1e6]),
    ]


class InProcess:
    """The same engines and requests through the Python API's own thread, without HTTP."""

    def __init__(self, folder: Path, threads: int) -> None:
        from framework.deployment.live import Live
        from framework.deployment.system import deployed, make_executor

        settings = (f"engine_dir={folder}", f"backend.threads={threads}", "batching=inflight", f"batching.size={ROWS}")
        config = configured(*settings)
        self._live = Live(make_executor(config, deployed(config), None))

    def run(self, count: int, tokens: int) -> tuple[float, float]:
        """Median seconds to the first token, and tokens a second, of requests that come at once."""
        return asyncio.run(self._run(count, tokens))

    async def _run(self, count: int, tokens: int) -> tuple[float, float]:
        begin = perf_counter()
        timed = await asyncio.gather(*[self._one(number, tokens) for number in range(count)])
        return median(first for first, _ in timed), sum(n for _, n in timed) / (perf_counter() - begin)

    async def _one(self, number: int, tokens: int) -> tuple[float, int]:
        from framework.execution.request import Request
        from framework.execution.session import Chunk

        sampling = {"default": {"temperature": 1.0, "seed": number, "max_generate_length": tokens}}
        messages = [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]
        request = Request(index=number, fields={"messages": messages}, sampling=sampling)
        begin, first, written = perf_counter(), 0.0, 0
        async for event in self._live.aevents(request):
            if isinstance(event, Chunk):
                first = first or perf_counter() - begin
            else:
                if event.result.error is not None:
                    raise event.result.error
                written = event.result.stages["thinker"].details["generated_tokens"]
        return first, written


@attrs.frozen(kw_only=True)
class Running:
    """A server in a process of its own."""

    url: str
    pid: int

    @property
    def memory(self) -> int:
        """Bytes that the process holds now."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


@contextlib.contextmanager
def server(folder: Path, threads: int) -> Iterator[Running]:
    """Raises Missing when it does not start."""
    import httpx

    settings = [DEPLOYMENT, f"engine_dir={folder}", f"backend.threads={threads}", f"batching.size={ROWS}"]
    settings += ["port=0", "log_requests=false", f"limits.queue={LEAVING}"]
    process = subprocess.Popen([sys.executable, "-m", SERVER, *settings], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        url = said.partition(": ")[2].strip().rstrip("/")
        if not url.startswith("http"):
            raise Missing(f"the server says {said.strip()!r}")
        while httpx.get(f"{url}/ready").status_code != 200:
            sleep(0.1)
        yield Running(url=url, pid=process.pid)
    finally:
        process.terminate()
        process.wait()


async def _rounds(local: Worker, running: Running, rounds: int, say: Say) -> dict[str, list[float]]:
    """Samples by name; what is compared takes turns."""
    import httpx

    found: dict[str, list[float]] = {}
    limits = httpx.Limits(max_connections=USERS + 8)
    async with httpx.AsyncClient(base_url=running.url, timeout=600, limits=limits) as client:
        for number in range(rounds + 1):
            say("server: " + ("warming up" if number == 0 else f"round {number}"))
            sample: dict[str, float] = {}
            alone = [await _reply(client, n, TOKENS) for n in range(3)]
            sample["first"] = median(first for first, _, _ in alone)
            sample["one"] = sum(n for _, _, n in alone) / sum(wall for _, wall, _ in alone)
            sample["local first"] = median(local.call("run", 1, TOKENS)[0] for _ in range(3))
            sample["local many"] = local.call("run", USERS, TOKENS)[1]
            begin = perf_counter()
            many = await asyncio.gather(*[_reply(client, n, TOKENS) for n in range(USERS)])
            sample["many"] = sum(n for _, _, n in many) / (perf_counter() - begin)
            sample["late"] = await _late(client, sample["first"])
            if number:
                for name, value in sample.items():
                    found.setdefault(name, []).append(value)
    return found


async def _late(client: Any, prompt_s: float) -> float:
    """Steps of the running batch that a short request waits beyond its prompt's own time."""
    long = [asyncio.create_task(_reply(client, n, 4 * TOKENS)) for n in range(ROWS - 1)]
    await asyncio.sleep(8 * prompt_s)  # all of them write
    first, _, _ = await _reply(client, 99, 4)
    walls = await asyncio.gather(*long)
    step_s = median((wall - begun) / max(1, count) for begun, wall, count in walls)
    return (first - prompt_s) / step_s


async def _reply(client: Any, seed: int, tokens: int) -> tuple[float, float, int]:
    """Seconds to the first token, seconds to the end, and tokens of one streamed chat."""
    body = _body(seed, tokens) | {"stream_options": {"include_usage": True}}
    begin, first, written = perf_counter(), 0.0, 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            first = first or perf_counter() - begin
            written = event["usage"]["completion_tokens"] if event.get("usage") else written
    return first, perf_counter() - begin, written


def _body(seed: int, tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": PROMPT}]
    return {
        **{"model": "smollm2", "messages": messages, "temperature": 1, "seed": seed, "max_tokens": tokens},
        "stream": True,
    }


async def _leave(running: Running, say: Say) -> tuple[int, int, float]:
    """Bytes held before and after clients that leave at any moment, and the places that are still taken."""
    import httpx

    say(f"server: {LEAVING} clients leave")
    chance = random.Random(0)
    gate = asyncio.Semaphore(USERS)

    async def one(seed: int, wait_s: float) -> None:
        async with gate, httpx.AsyncClient(base_url=running.url, timeout=60) as client:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await _reply(client, seed, TOKENS)

    async def some(count: int) -> None:
        await asyncio.gather(*[one(n, chance.uniform(0.001, 0.5)) for n in range(count)])

    await some(LEAVING // 10)  # what is claimed once is no growth
    before = running.memory
    await some(LEAVING)
    async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        for _ in range(100):
            text = (await client.get("/metrics")).text
            taken = [float(line.split()[-1]) for line in text.splitlines() if line.startswith("multistage_active_req")]
            if not sum(taken):
                break
            await asyncio.sleep(0.1)
    return before, running.memory, sum(taken)
