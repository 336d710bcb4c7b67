"""Tokens a second of one process beside another, in turn: every round gives each contender a turn at everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs

from tests.bench.line import Line, paired
from tests.bench.ours import BareEngine, Ours
from tests.bench.peers import LlamaCpp, Transformers
from tests.bench.worker import Missing, Worker

PROMPT, SHORT, REPLY, ROWS = 256, 32, 64, 4  # tokens of a long and a short prompt and of a reply; requests in a cohort

Turn = tuple[str, str, tuple[Any, ...]]  # contender, method, arguments


@attrs.frozen(kw_only=True)
class Comparison:
    """A line and the two turns that it compares; they follow each other in every round."""

    line: Line
    ours: Turn
    theirs: Turn


def measure(
    engines: Mapping[str, Path], file: Path, threads: int, rounds: int, say: Callable[[str], None]
) -> list[Line]:
    """Lines for the engines of each precision, beside the peers on the checkpoint they were built from."""
    makers: dict[str, tuple[Any, ...]] = {"llama.cpp": (LlamaCpp, file, threads)}
    makers["transformers"] = (Transformers, file, threads)
    for precision, folder in engines.items():
        makers[precision] = (Ours, folder, threads, ROWS)
        makers[f"{precision} engine"] = (BareEngine, folder, threads)
    with ExitStack() as stack:
        contenders: dict[str, Worker | Missing] = {}
        for name, (make, *args) in makers.items():
            say(f"loading {name}")
            try:
                contenders[name] = stack.enter_context(Worker(make, *args))
            except Missing as missing:
                contenders[name] = missing
        tokenizer = contenders[next(iter(engines))]
        if isinstance(tokenizer, Missing):
            raise tokenizer
        prompts = {tokens: tokenizer.call("prompt", tokens) for tokens in (SHORT, PROMPT)}
        comparisons = [comparison for precision in engines for comparison in _comparisons(precision, prompts)]
        samples: list[list[tuple[float, float]]] = [[] for _ in comparisons]
        missing = [""] * len(comparisons)
        for number in range(rounds + 1):
            say("warming up" if number == 0 else f"round {number} of {rounds}")
            for index, comparison in enumerate(comparisons):
                if missing[index]:
                    continue
                try:
                    sample = _turn(contenders, comparison.ours), _turn(contenders, comparison.theirs)
                except Missing as reason:
                    missing[index] = str(reason)
                    continue
                if number:
                    samples[index].append(sample)
    return list(map(_measured, comparisons, samples, missing))


def _comparisons(precision: str, prompts: Mapping[int, list[int]]) -> list[Comparison]:
    one = (SHORT, REPLY)
    decode, read = (precision, "decode", one), (precision, "read", (PROMPT,))
    engine, cpp, torch = f"{precision} engine", "llama.cpp", "transformers"
    ids = (prompts[SHORT], REPLY)
    table: list[tuple[str, Turn, str, Turn, float | None]] = [
        ("decode", decode, cpp, (cpp, "decode", ids), 1.3),
        ("decode", decode, f"{torch} bf16", (torch, "decode", ids), 4),
        (f"prompt of {PROMPT}", read, cpp, (cpp, "read", (prompts[PROMPT],)), 2.5),
        (f"decode, cohort of {ROWS}", (precision, "decode", (*one, ROWS)), "one request", decode, 1.8),
        ("decode, all of it", decode, "bare engine", (engine, "decode", one), None),
        (f"prompt of {PROMPT}, all of it", read, "bare engine", (engine, "read", (PROMPT,)), None),
    ]
    return [
        Comparison(
            line=Line(name=f"{precision}: {name}", unit="tokens/s", peer_name=peer, at_least=wanted),
            ours=ours,
            theirs=theirs,
        )
        for name, ours, peer, theirs, wanted in table
    ]


def _measured(comparison: Comparison, samples: Sequence[tuple[float, float]], missing: str) -> Line:
    if missing:
        return attrs.evolve(comparison.line, missing=missing)
    ours, peer = zip(*samples, strict=True)
    return paired(comparison.line, ours, peer)


def _turn(contenders: Mapping[str, Worker | Missing], turn: Turn) -> float:
    name, method, args = turn
    contender = contenders[name]
    if isinstance(contender, Missing):
        raise contender
    return float(contender.call(method, *args))
