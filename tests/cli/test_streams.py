"""Commands whose standard streams are closed, full or read by nobody: right statuses, and nothing beside the reply."""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cli.fakes import BEEP, ECHO, ROWS, engines

COMMANDS = ("inference", "build", "fetch", "report", "merge", "serve")
CLOSED = "error: standard output: got closed, expected a place to write to\n"
# The console script of a command, with the fakes allowed.
START = """
import sys
from functools import partial
from framework.cli import inference, start
from tests.cli.fakes import ALLOWED
inference.task = partial(inference.task, prefixes=ALLOWED)
getattr(start, sys.argv.pop(1))()
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def echo(tmp_path: Path) -> list[str]:
    """A command that says its prompt, and speaks it too."""
    return ["inference", *ROWS, f"engine_dir={engines(tmp_path / 'engines' / 'echo', ECHO, BEEP)}"]


def run(
    arguments: Sequence[str], *, closed: Sequence[int] = (), full: bool = False, left: Sequence[str] = ()
) -> tuple[int, str, str]:
    """A command's exit status, standard output and standard error.

    Args:
        closed: numbers of the streams that it starts without.
        full: no file may grow, and standard output and error are files.
        left: of "stdout" and "stderr", those whose reader has gone.
    """

    def prepare() -> None:
        for number in closed:
            os.close(number)
        if full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    pipes = {name: os.pipe() for name in left}
    for read, _ in pipes.values():
        os.close(read)
    with Path("out").open("w+") as out, Path("err").open("w+") as err:
        done = subprocess.run(
            [sys.executable, "-c", START, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=pipes["stdout"][1] if "stdout" in pipes else out,
            stderr=pipes["stderr"][1] if "stderr" in pipes else err,
            env=ENVIRONMENT,
            preexec_fn=prepare,
        )
        for _, write in pipes.values():
            os.close(write)
        out.seek(0), err.seek(0)
        return done.returncode, out.read(), err.read()


SUBSETS = [set(some) for size in range(4) for some in itertools.combinations(range(3), size)]


@pytest.mark.parametrize("closed", SUBSETS, ids=str)
def test_a_reply_without_some_streams(closed: set[int], echo: list[str]) -> None:
    status, out, err = run([*echo, "prompt=a b", "out_audio=a.wav"], closed=sorted(closed))
    assert out == ("" if 1 in closed else "a b\n"), "notices are no reply"
    assert Path("a.wav").is_file()
    assert status == (1 if 1 in closed else 0), "a reply that is lost is no success"
    said = "0.03 s of speech: a.wav\n" + (CLOSED if 1 in closed else "")
    assert err == ("" if 2 in closed else said)


@pytest.mark.parametrize("closed", SUBSETS, ids=str)
def test_a_file_without_some_streams(closed: set[int], echo: list[str]) -> None:
    """Its results lie in a file: standard output is not missed, and no file takes the number of a stream."""
    requests = [{"prompt": "a"}, {"prompt": "fail"}, {"prompt": "c"}]
    Path("r.json").write_text(json.dumps({"requests": requests}))
    status, out, err = run([*echo, "input_file=r.json", "output_file=p.json"], closed=sorted(closed))
    assert (status, out) == (1, "")
    assert [entry["output_text"] for entry in json.loads(Path("p.json").read_text())["responses"]] == ["a", "", "c"]
    assert ("2 of 3 requests answered: p.json" in err) is (2 not in closed)
    assert "Traceback" not in err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_without_streams(command: str) -> None:
    status, _, err = run([command, "--help"], closed=[1])
    assert (status, err) == (2, CLOSED)
    assert run([command, "--help"], closed=[0, 1, 2])[0] == 2
    status, out, _ = run([command, "--help"], closed=[0, 2])
    assert status == 0 and f"multistage-{command}" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_wrong_is_told_nowhere_but_on_standard_error(command: str) -> None:
    arguments = [command] if command == "merge" else [command, "nonsense=1"]
    status, out, err = run(arguments, closed=[2])
    assert (status, out, err) == (2, "", "")
    status, out, _ = run(arguments, left=["stderr"])
    assert (status, out) == (2, ""), "a reader that has gone changes nothing"


def test_standard_input_that_is_closed_is_told(echo: list[str]) -> None:
    status, out, err = run([*echo, "prompt_file=-"], closed=[0])
    assert (status, out) == (2, "")
    assert err == "error: prompt_file -: got Bad file descriptor, expected a file of text\n"


@pytest.mark.parametrize(("prompt", "expected"), [("prompt=a b", 1), ("--help", 2)])
def test_streams_on_a_full_disk(prompt: str, expected: int, echo: list[str]) -> None:
    assert run([*echo, prompt], full=True) == (expected, "", ""), "1 once a request has run, and no traceback"


def test_a_reply_whose_reader_has_gone(echo: list[str]) -> None:
    many = "prompt=" + "word " * 40
    assert run([*echo, many], left=["stdout"]) == (141, "", ""), "as a shell's own tools end, without a word"
    status, _, err = run([*echo, many, "out_audio=a.wav"], left=["stdout"])
    assert (status, err) == (141, "0.50 s of speech: a.wav\n"), "what else was asked for is made"


def test_a_file_and_a_sweep_go_on_when_their_reader_has_gone(echo: list[str]) -> None:
    Path("r.json").write_text(json.dumps({"requests": [{"prompt": "a"}, {"prompt": "b"}]}))
    assert run([*echo, "input_file=r.json", "output_file=p.json"], left=["stdout", "stderr"])[0] == 0
    assert json.loads(Path("p.json").read_text())["responses"][1]["output_text"] == "b"
    given = [*echo, "-m", "prompt=a,b,c", "hydra.sweep.dir=mine", "report.page=false"]
    assert run(given, left=["stdout", "stderr"])[0] == 141
    records = [json.loads(path.read_text()) for path in sorted(Path("mine").glob("*/result.json"))]
    assert [record["exit_status"] for record in records] == [0, 0, 0]


def test_streams_that_somebody_replaced_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    from framework.cli import streams

    before = sys.stdout, sys.stderr
    streams.protect()
    assert (sys.stdout, sys.stderr) == before
    assert streams.fault() is None


# --- results that cannot be written -----------------------------------------------------------------------------------


def fails(name: str) -> Callable[..., None]:
    def write(*_: object) -> None:
        raise OSError(28, "No space left on device", name)

    return write


@pytest.mark.parametrize("place", ["framework.io.audio.write_bytes", "framework.sweeps.record.write_text"])
def test_a_disk_that_fills_when_a_request_has_run(
    place: str, echo: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cli.fakes import infer

    monkeypatch.setattr(place, fails("it"))
    folder = ["out_audio=a.wav"]
    if "record" in place:
        Path("r.json").write_text(json.dumps({"requests": [{"prompt": "a"}]}))
        folder = ["input_file=r.json", "output_file=p.json"]
    given = folder if "record" in place else [*folder, "prompt=a"]
    assert infer(*echo[len(ROWS) + 1 :], *given) == 1
    assert "error: it: got No space left on device, expected a place to write to\n" in capsys.readouterr().err


def test_a_disk_that_is_full_before_a_request_runs(echo: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.cli.fakes import infer

    Path("r.json").write_text(json.dumps({"requests": [{"prompt": "a"}]}))
    monkeypatch.setattr("framework.io.predictions.Predictions._append", fails("p.json"))
    assert infer(*echo[len(ROWS) + 1 :], "input_file=r.json", "output_file=p.json") == 2
