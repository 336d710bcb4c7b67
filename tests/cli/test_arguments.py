"""What a person types reaches the config as it was meant."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from framework.cli.arguments import PATHS, TEXT, prepare, quote
from framework.cli.composition import Composer, values_of
from framework.errors import ConfigError


def composed(*argv: str) -> dict[str, Any]:
    with Composer("inference", prepare(argv)) as composer:
        return values_of(composer.compose())


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world",
        "f(x) = {x: [1, 2]}",
        'it\'s "quoted"',
        "back\\slash at the end\\",
        "${paths.cache} stays text",
        "\\${escaped}",
        "two\nlines",
        "",
        "  spaces  ",
        "123",
        "true",
        "~/+x@y:z?",
        "日本語、「はい」",
        "'open",
        '"a" or "b"',
    ],
)
def test_text_needs_no_quotes(text: str) -> None:
    assert composed(f"prompt={text}")["prompt"] == text


def test_any_text_survives() -> None:
    letters = random.Random(0)
    for _ in range(200):
        text = "".join(letters.choices("ab\\'\"${}=,() \n[]:", k=letters.randint(1, 8)))
        if text[0] + text[-1] in ("''", '""') or text == "null":
            continue  # read as already quoted
        assert composed_value(text) == text


def composed_value(text: str) -> str:
    """Through Hydra's parser and OmegaConf alone, which is quicker than a whole composition."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    (override,) = prepare([f"prompt={text}"])
    parsed = OverridesParser.create().parse_overrides([override])[0]
    return str(OmegaConf.create({"prompt": parsed.value()}).prompt)


def test_null_takes_a_text_away() -> None:
    assert composed("prompt=null")["prompt"] is None


def test_text_that_is_quoted_already_is_left_alone() -> None:
    assert composed("prompt='a, b'")["prompt"] == "a, b"


def test_paths_keep_their_interpolations() -> None:
    values = composed("engine_dir=${paths.engines}/my, model (2)")
    assert values["engine_dir"] == f"{values['paths']['engines']}/my, model (2)"


def test_a_sweep_may_have_commas() -> None:
    assert prepare(["-m", "prompt=a,b"]) == ["-m", "prompt=a,b"]


@pytest.mark.parametrize("argument", ["-m", "--cfg", "sampling=greedy", "sampling.top_k=5", "~stages", "+x.y=[1,2]"])
def test_everything_else_is_hydras(argument: str) -> None:
    assert prepare([argument]) == [argument]


@pytest.mark.parametrize("key", sorted(TEXT | PATHS))
def test_keys_of_text_exist(key: str) -> None:
    assert composed(f"{key}=x y")


def test_settings_of_a_stage_need_no_plus() -> None:
    assert composed("stages.talker.config.chunk_frames=12")["stages"] == {"talker": {"config": {"chunk_frames": 12}}}


def test_sampling_as_json() -> None:
    values = composed('sampling={"temperature": 0.7, "talker_top_k": 4, "stop": "a, b", "logit_bias": {"5": -1}}')
    sampling = values["sampling"]
    assert (sampling["temperature"], sampling["talker"]["top_k"]) == (0.7, 4)
    assert (sampling["stop"], sampling["logit_bias"]) == (["a, b"], {5: -1.0})


def test_sampling_and_style_from_files(tmp_path: Path) -> None:
    (tmp_path / "cold.json").write_text('{"temperature": 0.1}')
    (tmp_path / "slow.json").write_text(json.dumps({"speed": 0.8}))
    values = composed(f"sampling={tmp_path}/cold.json", f"style={tmp_path}/slow.json")
    assert (values["sampling"]["temperature"], values["style"]["speed"]) == (0.1, 0.8)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ('sampling={"temperature": 0.7,}', "sampling, line 1, column 21: got malformed JSON"),
        ('sampling={"temprature": 0.7}', "sampling.temprature: .*did you mean 'temperature'"),
        ('sampling={"top_p": 2}', "sampling.top_p: got 2, expected a number > 0"),
        ("sampling=no/such.json", "no/such.json: got No such file"),
    ],
)
def test_json_that_is_wrong(argument: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare([argument])


def test_quote_is_undone_by_the_grammar() -> None:
    assert quote("it's") == "'it\\'s'"
    assert quote("end\\") == "'end\\\\'"
