"""JSON files of a checkpoint: faults with line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.errors import ConfigError
from framework.io.jsonfile import read_object


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b'{\n  "a": 1,\n  "b" 2\n}', "line 3, column 7: got '2', expected valid JSON", id="syntax"),
        pytest.param(b'{"a": [1,', "line 1, column 10: got end of text", id="ends early"),
        pytest.param(b"", "line 1, column 1: got end of text", id="empty"),
        pytest.param(b"[1]", "got a JSON list, expected a JSON object", id="no object"),
        pytest.param(b'{"a": "\xff"}', "byte 0xff at offset 7", id="no UTF-8"),
        pytest.param(b'{"a": ' * 100_000, "recursion", id="brackets without end"),
        pytest.param(b'{"a": ' + b"9" * 5000 + b"}", "4300 digits", id="endless number"),
        pytest.param(None, "No such file", id="missing"),
    ],
)
def test_fault_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_object(path)
    assert str(path) in str(caught.value) and said in str(caught.value)


def test_object_is_read(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text('{"ä": [1, null]}', encoding="utf-8")
    assert read_object(tmp_path / "file.json") == {"ä": [1, None]}
