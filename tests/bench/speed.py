"""Tokens a second of one process beside another: in every round each contender gets one turn at each kind of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs

from tests.bench.line import Line, paired
from tests.bench.ours import BareEngine, Ours
from tests.bench.peers import LlamaCpp, Transformers
from tests.bench.worker import Missing, Worker

# Tokens of a long and a short prompt, of a reply, and of a slow contender's reply; requests in a cohort.
PROMPT, SHORT, REPLY, FEW, ROWS = 256, 32, 64, 24, 4
LLAMA, TORCH = "llama.cpp", "transformers bf16"

Turn = tuple[str, str, tuple[Any, ...]]  # contender, method, arguments
Say = Callable[[str], None]


@attrs.frozen(kw_only=True)
class Comparison:
    """A line, and the two turns whose samples make it."""

    line: Line
    ours: Turn
    peer: Turn


def measure(engines: Mapping[str, Path], file: Path, threads: int, rounds: int, say: Say) -> list[Line]:
    """Lines for the engines of each precision, beside the peers on the checkpoint they were built from."""
    makers: dict[str, tuple[Any, ...]] = {LLAMA: (LlamaCpp, file, threads), TORCH: (Transformers, file, threads)}
    for precision, folder in engines.items():
        makers[precision] = (Ours, folder, threads, ROWS)
        makers[_bare(precision)] = (BareEngine, folder, threads)
    with ExitStack() as stack:
        contenders: dict[str, Worker | Missing] = {}
        for name, (make, *args) in makers.items():
            say(f"loading {name}")
            try:
                contenders[name] = stack.enter_context(Worker(make, *args))
            except Missing as missing:
                contenders[name] = missing
        tokenizer = _there(contenders, next(iter(engines)))
        prompts = {tokens: tuple(tokenizer.call("prompt", tokens)) for tokens in (SHORT, PROMPT)}
        comparisons = _comparisons(list(engines), prompts)
        samples, missing_turns = _rounds(comparisons, contenders, rounds, say)
    lines = []
    for comparison in comparisons:
        reason = missing_turns.get(comparison.ours) or missing_turns.get(comparison.peer)
        if reason:
            lines.append(attrs.evolve(comparison.line, missing=reason))
        else:
            lines.append(paired(comparison.line, samples[comparison.ours], samples[comparison.peer]))
    return lines


def _comparisons(precisions: list[str], prompts: Mapping[int, tuple[int, ...]]) -> list[Comparison]:
    """Turns are taken in this order: those that are compared follow each other closely."""
    one = (SHORT, REPLY)
    short, long = prompts[SHORT], prompts[PROMPT]
    read = f"prompt of {PROMPT}"
    # name, our method and its arguments, the peer and its turn beside this precision's, what is wanted
    table: list[tuple[str, str, tuple[int, ...], str, Callable[[str], Turn], float | None]] = [
        ("decode", "decode", one, LLAMA, lambda _: (LLAMA, "decode", (short, REPLY)), 1.3),
        (f"decode, cohort of {ROWS}", "decode", (*one, ROWS), "one request", lambda p: (p, "decode", one), 1.8),
        ("decode", "decode", one, "bare engine", lambda p: (_bare(p), "decode", one), None),
        ("decode", "decode", one, TORCH, lambda _: (TORCH, "decode", (short, FEW)), 4),
        (read, "read", (PROMPT,), LLAMA, lambda _: (LLAMA, "read", (long,)), 2.5),
        (read, "read", (PROMPT,), "bare engine", lambda p: (_bare(p), "read", (PROMPT,)), None),
    ]
    return [
        Comparison(
            line=Line(name=f"{name}, {precision}", unit="tokens/s", peer_name=peer, at_least=wanted),
            ours=(precision, method, arguments),
            peer=turn(precision),
        )
        for name, method, arguments, peer, turn, wanted in table
        for precision in precisions
    ]


def _rounds(
    comparisons: list[Comparison], contenders: Mapping[str, Worker | Missing], rounds: int, say: Say
) -> tuple[dict[Turn, list[float]], dict[Turn, str]]:
    """Tokens a second of each turn by round, after one that is not counted; and why a turn could not be taken."""
    turns = dict.fromkeys(turn for comparison in comparisons for turn in (comparison.ours, comparison.peer))
    samples: dict[Turn, list[float]] = {turn: [] for turn in turns}
    missing: dict[Turn, str] = {}
    for number in range(rounds + 1):
        say("warming up" if number == 0 else f"round {number} of {rounds}")
        for turn in turns:
            if turn in missing:
                continue
            contender, method, arguments = turn
            try:
                samples[turn].append(float(_there(contenders, contender).call(method, *arguments)))
            except Missing as reason:
                missing[turn] = str(reason)
    return {turn: taken[1:] for turn, taken in samples.items()}, missing


def _there(contenders: Mapping[str, Worker | Missing], name: str) -> Worker:
    contender = contenders[name]
    if isinstance(contender, Missing):
        raise contender
    return contender


def _bare(precision: str) -> str:
    return f"{precision}, bare"
