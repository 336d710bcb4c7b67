"""What a person types reaches the config as it was meant."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from framework.cli.arguments import PATHS, TEXT, prepare, quote
from framework.cli.composition import Composer, values_of
from framework.errors import ConfigError


def composed(*argv: str, command: str = "inference") -> dict[str, Any]:
    with Composer(command, prepare(argv)) as composer:
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
        '"quoted"',
        "'so too'",
        "???",
        "\\\\???",
    ],
)
def test_text_needs_no_quotes(text: str) -> None:
    assert composed(f"prompt={text}")["prompt"] == text


def test_any_text_survives() -> None:
    letters = random.Random(0)
    for _ in range(200):
        text = "".join(letters.choices("ab\\'\"${}=,() \n[]:", k=letters.randint(1, 8)))
        assert composed_value(text) == text


def composed_value(text: str) -> str:
    """Through Hydra's parser and OmegaConf alone, which is quicker than a whole composition."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (override,) = prepare([f"prompt={text}"])
    parsed = OverridesParser.create().parse_overrides([override])[0]
    return str(values_of(OmegaConf.create({"prompt": parsed.value()}))["prompt"])


def test_null_takes_a_text_away() -> None:
    assert composed("prompt=null")["prompt"] is None


def test_paths_keep_their_interpolations() -> None:
    values = composed("engine_dir=${paths.engines}/my, model (2)")
    assert values["engine_dir"] == f"{values['paths']['engines']}/my, model (2)"


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("a,b", ["a", "b"]),
        ("Hello, you,Bye", ["Hello, you", "Bye"]),
        ("'now,here',f(x) = {1}", ["now,here", "f(x) = {1}"]),
        ("???,it's ${x}", ["???", "it's ${x}"]),
        ("choice(a,b)", ["a", "b"]),
        ("one", ["one"]),
    ],
)
def test_a_sweep_parts_texts_at_commas_without_a_space_behind(given: str, texts: list[str]) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    _, override = prepare(["-m", f"prompt={given}"])
    parser = OverridesParser.create()
    (parsed,) = parser.parse_overrides([override])
    choices = parsed.sweep_string_iterator() if parsed.is_sweep_override() else [override.partition("=")[2]]
    found = [values_of(OmegaConf.create({"prompt": parser.parse_override(f"prompt={c}").value()})) for c in choices]
    assert [value["prompt"] for value in found] == texts


def test_a_sweep_with_a_comma_too_many_is_left_to_hydra() -> None:
    assert prepare(["-m", "prompt=a,,b"]) == ["-m", "prompt=a,,b"]


@pytest.mark.parametrize("argument", ["-m", "--cfg", "sampling=greedy", "sampling.top_k=5", "~stages", "+x.y=[1,2]"])
def test_everything_else_is_hydras(argument: str) -> None:
    assert prepare([argument]) == [argument]


@pytest.mark.parametrize("key", sorted(TEXT | PATHS))
def test_keys_of_text_exist(key: str) -> None:
    assert composed(f"{key}=x y", command="report" if key == "folder" else "inference")


def test_settings_of_a_stage_need_no_plus() -> None:
    values = composed("stages.talker.config.chunk_frames=12", "sampling.writer.top_k=3", "sampling.talker.top_k=4")
    assert values["stages"] == {"talker": {"config": {"chunk_frames": 12}}}
    assert (values["sampling"]["writer"], values["sampling"]["talker"]["top_k"]) == ({"top_k": 3}, 4)


@pytest.mark.parametrize(
    ("argument", "role", "setting", "value"),
    [
        ("sampling.talker_temperature=0.5", "talker", "temperature", 0.5),
        ("sampling.cp_top_k=4", "code_predictor", "top_k", 4),
        ("sampling.subtalker_top_p=0.5", "code_predictor", "top_p", 0.5),
        ("sampling.subtalker_top_k=0", "code_predictor", "top_k", None),
        ("+sampling.talker_seed=3", "talker", "seed", 3),
        ("sampling.max_audio_length=20", "talker", "max_generate_length", 20),
    ],
)
def test_flat_keys_of_the_original(argument: str, role: str, setting: str, value: float | None) -> None:
    assert composed(argument)["sampling"][role][setting] == value


def test_sampling_as_json() -> None:
    values = composed('sampling={"temperature": 0.7, "talker_top_k": 4, "stop": "a, b", "logit_bias": {"5": -1}}')
    sampling = values["sampling"]
    assert (sampling["temperature"], sampling["talker"]["top_k"]) == (0.7, 4)
    assert (sampling["stop"], sampling["logit_bias"]) == (["a, b"], {5: -1.0})


def test_sampling_and_style_from_files(tmp_path: Path) -> None:
    (tmp_path / "cold.json").write_text('{"temperature": 0.1}')
    (tmp_path / "slow.json").write_text(json.dumps({"speed": 0.8}))
    (tmp_path / "own").write_text('temperature: 1e-1\nwriter:\n  stop: ["???", "a, b"]\ntalker_top_k: 4\n')
    values = composed(f"sampling={tmp_path}/cold.json", f"style={tmp_path}/slow.json")
    assert (values["sampling"]["temperature"], values["style"]["speed"]) == (0.1, 0.8)
    sampling = composed("sampling.temperature=2", f"sampling={tmp_path}/own")["sampling"]
    assert sampling["temperature"] == 2, "as with a preset, a setting of its own goes over the file wherever it stands"
    assert (sampling["talker"]["top_k"], sampling["writer"]) == (4, {"stop": ["???", "a, b"]})


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ('sampling={"temperature": 0.7,}', "sampling, line 1, column 21: got malformed JSON"),
        ('sampling={"temprature": 0.7}', "sampling.temprature: .*did you mean 'temperature'"),
        ('sampling={"top_p": 2}', "sampling.top_p: got 2, expected a number > 0"),
        ("sampling=no/such.json", "no/such.json: got No such file"),
        ("style=no/such", "no/such: got No such file"),
        ("sampling=a.yaml,b.yaml", "MULTISTAGE_CONFIG_DIR/sampling/ are sampling=a,b"),
        ('sampling={"writer": {"topk": 2}}', "sampling.writer.topk: .*did you mean 'top_k'"),
    ],
)
def test_json_that_is_wrong(argument: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare([argument])


@pytest.mark.parametrize(
    ("given", "spelled"),
    [
        ('style={"speed":1},{"speed":1.1}', "+style={speed:1},{speed:1.1}"),
        ("style={speed:1},{speed:1.1}", "+style={speed:1},{speed:1.1}"),
        (
            'sampling={"top_k": 1, "talker": {"top_k": 3}}, {"top_k": 2, "stop": ["a"]}',
            '+sampling={top_k: 1, talker: {top_k: 3}}, {top_k: 2, stop: ["a"]}',
        ),
    ],
)
def test_a_sweep_over_objects_is_told_as_hydra_spells_it(given: str, spelled: str) -> None:
    with pytest.raises(ConfigError) as told:
        prepare(["-m", given])
    assert told.value.problems[0].hint == f"a sweep over several, as Hydra spells it: -m '{spelled}'"
    (override,) = OverridesParser.create().parse_overrides(prepare([spelled]))
    assert override.is_sweep_override() and len([*override.sweep_iterator()]) == 2


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (b"prompt=H\xc3\xa9 \xff there", "prompt: got byte 0xff at offset 4, expected text in UTF-8"),
        (b"+stages.a.config.name=\xe9", "stages.a.config.name: got byte 0xe9 at offset 0, expected text in UTF-8"),
        (b"out_audio=\xff.wav", "out_audio: got byte 0xff at offset 0, expected text in UTF-8"),
        (b"--multi\xff", "command line: got byte 0xff at offset 7, expected text in UTF-8"),
    ],
)
def test_an_argument_that_is_no_text(argument: bytes, message: str) -> None:
    with pytest.raises(ConfigError) as told:
        prepare([os.fsdecode(argument), "prompt=fine"])
    assert str(told.value) == message


@pytest.mark.parametrize(
    ("argument", "key", "digits"),
    [
        ("sampling.seed=" + "9" * 6000, "sampling.seed", "6,000"),
        ("++stages.a.config.n=[1,-" + "1" * 4301 + "]", "stages.a.config.n", "4,301"),
        ("sampling.seed=1,2," + "1_0" * 3000, "sampling.seed", "6,000"),
    ],
)
def test_an_integer_of_more_digits_than_python_reads(argument: str, key: str, digits: str) -> None:
    with pytest.raises(ConfigError) as told:
        prepare([argument, "prompt=fine"])
    assert str(told.value) == f"{key}: got an integer of {digits} digits, expected at most 4,300 digits"


@pytest.mark.parametrize("text", ["1" * 4300, "1" * 5000 + ".5", "'" + "1" * 5000 + "'", "a" + "1" * 5000])
def test_many_digits_that_may_be(text: str) -> None:
    for argument in (f"sampling.seed={text}", f"prompt={text}"):
        OverridesParser.create().parse_overrides(prepare([argument]))


def test_quote_is_undone_by_the_grammar() -> None:
    assert quote("it's") == "'it\\'s'"
    assert quote("end\\") == "'end\\\\'"
