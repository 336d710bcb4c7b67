"""`python -m tests.bench [PART ...] [--rounds N] [--threads N] [--json FILE]`.

Builds all engines afresh, so that what is measured is what is in the tree. Exit status: 0 all that is wanted
was met · 1 something was below it · 2 nothing was below, but something could not be measured.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import tempfile
from pathlib import Path

from framework.errors import MultistageError
from tests.bench import machine, report
from tests.bench.line import Line
from tests.bench.worker import Worker

# Each is a module of this package with `measure(folder, threads, rounds, say) -> list[Line]`; the folder is its own.
PARTS = {
    "language": "SmolLM2 beside llama.cpp and transformers; commands",
    "voice": "the voice assistant beside faster-whisper and hibari's package",
    "tts": "Qwen3-TTS beside qwen-tts",
    "omni": "Qwen3-Omni beside transformers; speech while the answer is written",
    "scale": "files of many requests: the executor's cost, memory, in-flight batching beside cohorts",
    "serve": "the server beside the same requests in process; many users, late ones, such that leave",
    "sweep": "sweeps: what a point costs beside its tokens, how soon their page is open",
}


def main() -> int:
    parts = "; ".join(f"{name}: {what}" for name, what in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="speed and memory beside the peers", epilog=f"Parts: {parts}."
    )
    parser.add_argument("part", nargs="*", metavar="PART", help="what to measure (default everything)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contender that are counted (default 7)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each contender (default 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    args = parser.parse_args()
    if unknown := sorted(set(args.part) - PARTS.keys()):
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")

    facts = machine.machine() | machine.versions() | {"threads": str(args.threads), "rounds": str(args.rounds)}
    with Worker(machine.Memory) as memory:
        facts["memory, one thread's copy"] = f"{memory.call('bandwidth') / 1e9:.1f} GB/s"
    lines: list[Line] = []
    for part in args.part or PARTS:
        with tempfile.TemporaryDirectory(prefix=f"multistage-bench-{part}-") as folder:
            module = importlib.import_module(f"tests.bench.{part}")
            lines += module.measure(Path(folder), args.threads, args.rounds, say)
    report.show(facts, lines)
    if args.json:
        report.save(args.json, facts, lines)
    verdicts = {line.verdict for line in lines}
    return 1 if "below" in verdicts else 2 if "not measured" in verdicts else 0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def guarded() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that the engines are removed
    try:
        return main()
    except (MultistageError, RuntimeError) as error:  # what every line needs could not be had
        say(f"error: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(guarded())
