"""`python -m tests.bench [--rounds N] [--threads N] [--json FILE]`.

Builds all engines afresh, so that what is measured is what is in the tree. Exit status: 0 all that is wanted
was met · 1 something was below it · 2 nothing was below, but something could not be measured.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from framework.errors import MultistageError
from tests.bench import commands, machine, report, speed, voice
from tests.bench.ours import DEPLOYMENT, Ours, configured
from tests.bench.worker import Worker

PRECISIONS = ("int4", "int8")  # the first is the deployment's own


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="speed and memory beside the peers")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contender that are counted (default 7)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each contender (default 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    args = parser.parse_args()

    from framework.cli.building import fetch_weights

    config = configured()
    file = fetch_weights(config.deployment, config.paths)
    facts = machine.machine() | machine.versions() | {"threads": str(args.threads), "rounds": str(args.rounds)}
    with tempfile.TemporaryDirectory(prefix="multistage-bench-") as folder:
        engines = {precision: Path(folder, precision) for precision in PRECISIONS}
        for precision, engine in engines.items():
            say(f"building {precision} engines")
            options = (DEPLOYMENT, f"build.precision={precision}", f"engine_dir={engine}")
            commands.command(*options, module=commands.BUILD)
        with Worker(machine.Memory) as memory:
            facts["memory, one thread's copy"] = f"{memory.call('bandwidth') / 1e9:.1f} GB/s"
        lines = speed.measure(engines, file, args.threads, args.rounds, say)
        own = engines[PRECISIONS[0]]
        with Worker(Ours, own, args.threads, 1) as ours:
            cached = ours.call("cached", commands.PROMPT, commands.REPLY)
        lines += commands.measure(own, cached, args.rounds, say)
        say("building the voice assistant")
        assistant = Path(folder, "voice")
        commands.command(voice.PRESET, f"engine_dir={assistant}", module=commands.BUILD)
        lines += voice.measure(assistant, args.threads, args.rounds, say)
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
