"""Sweeps: what a point costs beside its tokens, how often engines are loaded, and how soon a large page is open."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import attrs

from tests.bench import commands
from tests.bench.line import Line
from tests.bench.ours import DEPLOYMENT
from tests.sweeps.browsers import find
from tests.sweeps.folders import job, spoken

POINTS = ("sampling.temperature=0.2,0.7,1.0", "sampling.seed=1,2,3,4")
CELLS, SECONDS = 200, 8.0  # of the page, and of speech in each of them
Say = Callable[[str], None]


def measure(folder: Path, threads: int, rounds: int, say: Say) -> list[Line]:
    """Lines for a sweep of 12 points, whose engines are built in `folder`, and for a page."""
    say("building int4 engines")
    engines = f"engine_dir={folder / 'engines'}"
    commands.command(DEPLOYMENT, "build.precision=int4", engines, module=commands.BUILD)
    loads = Line(name="sweep of 12 points, engines loaded", unit="times", at_most=1)
    cost = Line(name="sweep of 12 points, a point beside its tokens", unit="s", at_most=0.15)
    given = (DEPLOYMENT, engines, f"backend.threads={threads}", "prompt=Write about the sea.")
    took, loaded = list[float](), list[int]()
    try:
        for number in range(rounds + 1):
            say("sweeps: " + ("warming up" if number == 0 else f"round {number} of {rounds}"))
            place = folder / f"sweep{number}"
            sweep = (f"hydra.sweep.dir={place}", "sampling.max_generate_length=32")
            commands.command("-m", *given, *POINTS, *sweep)
            records = [json.loads((place / str(point) / "result.json").read_text()) for point in range(12)]
            if number:
                took.append(beside(records))
                loaded.append(sum(record["timings"]["load_s"] > 0.01 for record in records))
    except RuntimeError as error:
        loads, cost = (attrs.evolve(line, missing=str(error)) for line in (loads, cost))
    else:
        loads, cost = attrs.evolve(loads, ours=max(loaded)), attrs.evolve(cost, ours=median(took))
    return [loads, cost, _page(folder / "page", rounds, say)]


def beside(records: Sequence[dict[str, Any]]) -> float:
    """Seconds from the start of a point to the start of the next that were neither loading nor answering; the mean."""
    starts = [datetime.fromisoformat(record["started"]).timestamp() for record in records]
    spent = [record["timings"]["load_s"] + record["timings"]["run_s"] for record in records[:-1]]
    return sum(next_ - start - at_work for (start, next_), at_work in zip(pairwise(starts), spent, strict=True)) / 11


def _page(folder: Path, rounds: int, say: Say) -> Line:
    from framework.sweeps.collect import collect
    from framework.sweeps.page import save_page

    line = Line(name=f"page of {CELLS} cells is open", unit="s", at_most=2)
    path = find()
    if isinstance(path, str):
        return attrs.evolve(line, missing=path)
    from playwright.sync_api import sync_playwright

    say("the page")
    for number in range(CELLS // 10):
        point = folder / str(number)
        first = spoken(point, 0, "one two three four " * 20, seconds=SECONDS)
        others = [
            dict(first, request_idx=index, audio_file=_copy(first["audio_file"], index)) for index in range(1, 10)
        ]
        job(point, first, *others, overrides=[f"sampling.seed={number}"])
    save_page(collect(folder), folder / "index.html", embed_mb=1000)
    took = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for _ in range(rounds + 1):
            page = browser.new_page()
            begin = perf_counter()
            page.goto((folder / "index.html").as_uri())
            page.wait_for_selector("html[data-ready]")
            took.append(perf_counter() - begin)
            page.close()
        browser.close()
    return attrs.evolve(line, ours=median(took[1:]))


def _copy(path: str, index: int) -> str:
    return str(shutil.copy(path, Path(path).with_name(f"audio_req{index}.wav")))
