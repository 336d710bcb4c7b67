"""The command as a user starts it, in a process of its own: time to the first byte, time to the end, peak memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import attrs

from tests.bench.line import Line, paired
from tests.bench.ours import DEPLOYMENT

INFERENCE, BUILD = "framework.cli.inference", "framework.cli.build"
PROMPT, REPLY = "Hello", 64
REQUEST = (f"prompt={PROMPT}", "sampling=greedy", f"sampling.max_generate_length={REPLY}")


@attrs.frozen(kw_only=True)
class Ran:
    """Seconds to the first byte on standard output and to the end, and most bytes held in memory at once."""

    first_byte_s: float
    wall_s: float
    peak_bytes: int


def command(*arguments: str, module: str = INFERENCE, silent: bool = False) -> Ran:
    """Run a command to its end. Raises RuntimeError with its last words when it fails, or says nothing unasked."""
    with tempfile.TemporaryFile("w+") as errors:
        begin = perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, stderr=errors, bufsize=0
        )
        assert process.stdout is not None
        with process.stdout as out:
            said = out.read(1)
            first = perf_counter() - begin
            while out.read(1 << 16):
                pass
        _, status, usage = os.wait4(process.pid, 0)
        wall = perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode or not (said or silent or module == BUILD):
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or ["it said nothing"]
            raise RuntimeError(f"{module} {' '.join(arguments)}: status {process.returncode}, {last[0]}")
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Ran(first_byte_s=first, wall_s=wall, peak_bytes=peak)


def measure(folder: Path, cached: int, rounds: int, say: Callable[[str], None]) -> list[Line]:
    """Lines for the command on the engines in `folder`; `cached` is the bytes of cache that `REQUEST` fills."""
    deployed = (DEPLOYMENT, f"engine_dir={folder}")
    wanted: list[tuple[str, tuple[str, ...], Callable[[Ran], float], float]] = [
        ("first token of a command", (*deployed, *REQUEST), lambda ran: ran.first_byte_s, 2),
        ("--help", ("--help",), lambda ran: ran.wall_s, 1),
        ("validate_config=true", (*deployed, "validate_config=true"), lambda ran: ran.wall_s, 1),
    ]
    lines = [Line(name=name, unit="s", at_most=most) for name, _, _, most in wanted]
    runs: list[list[Ran]] = [[] for _ in wanted]
    for number in range(rounds + 1):
        say("commands: " + ("warming up" if number == 0 else f"round {number} of {rounds}"))
        for index, (_, arguments, _, _) in enumerate(wanted):
            if lines[index].missing:
                continue
            try:
                ran = command(*arguments)
            except RuntimeError as error:
                lines[index] = attrs.evolve(lines[index], missing=str(error))
                continue
            if number:
                runs[index].append(ran)
    lines = [
        line if line.missing else attrs.evolve(line, ours=median(map(seconds, ran)))
        for line, (_, _, seconds, _), ran in zip(lines, wanted, runs, strict=True)
    ]
    engine = sum(file.stat().st_size for file in folder.iterdir())
    memory = Line(name="peak memory of a command", unit="MB", peer_name="engine + cache + 250 MB", at_most=1)
    if lines[0].missing:
        return [*lines, attrs.evolve(memory, missing=lines[0].missing)]
    allowed = (engine + cached) / 1e6 + 250
    return [*lines, paired(memory, [ran.peak_bytes / 1e6 for ran in runs[0]], [allowed] * rounds)]
