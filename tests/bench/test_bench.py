"""What decides a verdict, and contenders that cannot run."""

from __future__ import annotations

import importlib
import os

import pytest

from tests.bench.line import Line, paired
from tests.bench.worker import Missing, Worker


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (Line(name="faster", unit="tokens/s", ours=26, peer=20, peer_name="peer", ratio=1.3, at_least=1.3), "pass"),
        (Line(name="slower", unit="tokens/s", ours=25, peer=20, peer_name="peer", ratio=1.25, at_least=1.3), "below"),
        (Line(name="quick", unit="s", ours=2.0, at_most=2), "pass"),
        (Line(name="late", unit="s", ours=2.1, at_most=2), "below"),
        (Line(name="told only", unit="tokens/s", ours=1, peer=2, peer_name="peer", ratio=0.5), "-"),
        (Line(name="alone", unit="tokens/s", peer_name="peer", at_least=1, missing="no peer"), "not measured"),
    ],
    ids=lambda value: value.name if isinstance(value, Line) else value,
)
def test_verdict(line: Line, verdict: str) -> None:
    assert line.verdict == verdict


def test_a_machine_that_slows_down_for_everybody_does_not_move_the_ratio() -> None:
    line = paired(Line(name="decode", unit="tokens/s", peer_name="peer"), ours=[30, 3, 15], peer=[20, 2, 10])
    assert line.ratio == pytest.approx(1.5)
    assert (line.ours, line.peer) == (15, 10)


def test_a_worker_keeps_its_subject_between_calls() -> None:
    with Worker(list, [1]) as worker:
        worker.call("append", 2)
        assert worker.call("index", 2) == 1


def test_a_package_that_is_not_installed_says_what_to_install() -> None:
    with pytest.raises(Missing, match=r"no package no_such_peer: pip install"):
        Worker(importlib.import_module, "no_such_peer")


def test_a_crash_is_named_by_its_signal() -> None:
    with pytest.raises(Missing, match="SIGABRT"):
        Worker(os.abort)


def test_a_call_that_fails_ends_neither_side() -> None:
    with Worker(list, [1]) as worker:
        with pytest.raises(Missing, match="ValueError"):
            worker.call("index", 5)
        assert worker.call("index", 1) == 0
