"""Opening a checkpoint folder: its layouts, its faults all at once, and the check of its weights."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from framework.checkpoints.bpe import AddedToken, bpe_tokenizer
from framework.checkpoints.checkpoint import Checkpoint, check_weights, open_checkpoint
from framework.errors import ConfigError
from framework.io.tokens import Tokenizer, _byte_alphabet

CONFIG = {"architectures": ["TinyForCausalLM"], "eos_token_id": 7, "hidden_size": 4}
WEIGHTS = {f"model.layers.{i}.weight": np.full((2, 4), i, np.float32) for i in range(3)}


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def write_folder(folder: Path, shards: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", CONFIG)
    if shards == 1:
        save_file(WEIGHTS, folder / "model.safetensors")
        return folder
    files = {name: f"model-{number % shards}.safetensors" for number, name in enumerate(WEIGHTS)}
    for file in set(files.values()):
        save_file({name: WEIGHTS[name] for name in WEIGHTS if files[name] == file}, folder / file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": files})
    return folder


def edit_index(folder: Path, edit: Callable[[dict[str, str]], Any]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    edit(index["weight_map"])
    write_json(path, index)


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_weights_of_one_or_more_files(tmp_path: Path, shards: int) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path, shards))
    assert checkpoint.config == CONFIG
    assert set(checkpoint.tensors) == set(WEIGHTS)
    for name, weight in WEIGHTS.items():
        np.testing.assert_array_equal(checkpoint.tensors[name].array(), weight)


def test_diffusers_file_name_is_known(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "diffusion_pytorch_model.safetensors")
    assert set(open_checkpoint(tmp_path).tensors) == set(WEIGHTS)


def test_generation_config_is_read_or_else_made_from_the_config(tmp_path: Path) -> None:
    assert open_checkpoint(write_folder(tmp_path)).generation_config == {"eos_token_id": 7}
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [7, 8], "top_k": 20})
    assert open_checkpoint(tmp_path).generation_config == {"eos_token_id": [7, 8], "top_k": 20}


def test_all_faults_of_a_folder_are_listed_at_once(tmp_path: Path) -> None:
    write_folder(tmp_path, shards=3)
    (tmp_path / "config.json").write_text('{"hidden_size": 4,\n "eos_token_id" 7}')
    (tmp_path / "generation_config.json").write_text("[]")
    (tmp_path / "model-1.safetensors").unlink()
    shard = tmp_path / "model-2.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(tmp_path)
    text = str(caught.value)
    assert len(caught.value.problems) == 4
    assert "config.json, line 2, column 17" in text
    assert "generation_config.json: got [], expected a JSON object" in text
    assert "model-1.safetensors: got No such file" in text
    assert "model-2.safetensors: got 31 bytes of data, expected 32 bytes" in text


@pytest.mark.parametrize("shard", ["../other/model.safetensors", "/model.safetensors", "a\\b", ""])
def test_index_may_not_leave_the_folder(tmp_path: Path, shard: str) -> None:
    write_folder(tmp_path / "other")
    write_folder(tmp_path / "mine", shards=2)
    edit_index(tmp_path / "mine", lambda weights: weights.update({"model.layers.0.weight": shard}))
    with pytest.raises(ConfigError, match="expected a file in this folder") as caught:
        open_checkpoint(tmp_path / "mine")
    assert repr(shard) in str(caught.value)


def test_weight_that_its_shard_lacks_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path, shards=2)
    edit_index(tmp_path, lambda weights: weights.update({"lm_head.weight": "model-1.safetensors"}))
    with pytest.raises(ConfigError, match=r"lm_head\.weight: got model-1\.safetensors without it"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}])
def test_index_without_a_weight_map_is_refused(tmp_path: Path, index: dict[str, Any]) -> None:
    write_folder(tmp_path, shards=2)
    write_json(tmp_path / "model.safetensors.index.json", index)
    with pytest.raises(ConfigError, match=r"weight_map: got \w+, expected an object of weight name to file name"):
        open_checkpoint(tmp_path)


def empty(folder: Path) -> Path:
    return folder


def absent(folder: Path) -> Path:
    return folder / "nowhere"


def text_file(folder: Path) -> Path:
    (folder / "notes.txt").write_text("no weights")
    return folder / "notes.txt"


def two_ggufs(folder: Path) -> Path:
    for name in ("a.gguf", "b.gguf"):
        (folder / name).write_bytes(b"GGUF")
    return folder


def pickled(folder: Path) -> Path:
    write_json(folder / "config.json", CONFIG)
    (folder / "pytorch_model.bin").write_bytes(b"code")
    return folder


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(absent, "got no such file or folder", id="nothing there"),
        pytest.param(empty, "got neither, expected config.json, or exactly one .gguf file", id="empty folder"),
        pytest.param(text_file, "expected a checkpoint folder or a .gguf file", id="another file"),
        pytest.param(two_ggufs, "got a.gguf, b.gguf", id="two ggufs"),
        pytest.param(pickled, "pytorch_model.bin, which may hold code", id="pickled weights"),
    ],
)
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, make: Callable[[Path], Path], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(make(tmp_path))
    assert said in str(caught.value)


# Fingerprint


def test_fingerprint_is_the_same_however_the_weights_are_split(tmp_path: Path) -> None:
    one, three = write_folder(tmp_path / "one"), write_folder(tmp_path / "three", shards=3)
    assert open_checkpoint(one).fingerprint == open_checkpoint(three).fingerprint


@pytest.mark.parametrize("change", ["config", "weight", "generation"])
def test_fingerprint_changes_with_what_is_built(tmp_path: Path, change: str) -> None:
    before = open_checkpoint(write_folder(tmp_path)).fingerprint
    if change == "config":
        write_json(tmp_path / "config.json", {**CONFIG, "hidden_size": 8})
    elif change == "weight":
        save_file({**WEIGHTS, "model.layers.1.weight": np.ones((2, 4), np.float32) * 9}, tmp_path / "model.safetensors")
    else:
        write_json(tmp_path / "generation_config.json", {"eos_token_id": 8})
    assert open_checkpoint(tmp_path).fingerprint != before


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "vocab.json"])
def test_a_changed_tokenizer_is_told(tmp_path: Path, file: str) -> None:
    write_tokenizer(write_folder(tmp_path))
    before = open_checkpoint(tmp_path).fingerprint
    assert open_checkpoint(tmp_path).changed_since(before) == ""
    (tmp_path / file).write_text("changed")
    assert open_checkpoint(tmp_path).changed_since(before) == "another tokenizer or chat template"
    before_tokenizers_counted = before.partition(".")[0]
    assert open_checkpoint(tmp_path).changed_since(before_tokenizers_counted) == "", "it cannot be known"
    write_json(tmp_path / "config.json", {**CONFIG, "hidden_size": 8})
    assert open_checkpoint(tmp_path).changed_since(before) == "other weights or another config"


def test_fingerprint_changes_with_a_checkpoint_inside(tmp_path: Path) -> None:
    alone = open_checkpoint(write_folder(tmp_path)).fingerprint
    (tmp_path / "notes").mkdir()
    write_json(tmp_path / "notes" / "config.json", {})
    assert open_checkpoint(tmp_path).fingerprint == alone, "no weights"
    inner = write_folder(tmp_path / "speech_tokenizer")
    both = open_checkpoint(tmp_path).fingerprint
    assert both != alone
    save_file({**WEIGHTS, "model.layers.1.weight": np.ones((2, 4), np.float32) * 9}, inner / "model.safetensors")
    assert open_checkpoint(tmp_path).fingerprint not in (alone, both)


# check_weights


def checkpoint_with(tmp_path: Path, shapes: dict[str, tuple[int, ...]]) -> Checkpoint:
    write_json(tmp_path / "config.json", CONFIG)
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    return open_checkpoint(tmp_path)


def test_exact_weights_pass(tmp_path: Path) -> None:
    shapes = {"a.weight": (2, 3), "b.weight": (4,)}
    check_weights(shapes, checkpoint_with(tmp_path, shapes))


def test_missing_misshapen_and_unused_weights_are_listed_at_once(tmp_path: Path) -> None:
    found = {"layers.0.up_proj.weight": (2, 3), "norm.weight": (4,), "rotary.inv_freq": (2,), "extra.bias": (1,)}
    expected = {"layers.0.up_project.weight": (2, 3), "norm.weight": (5,), "head.weight": (9, 9)}
    with pytest.raises(ConfigError) as caught:
        check_weights(expected, checkpoint_with(tmp_path, found), ignore=["*.inv_freq"], where="llm")
    assert [str(problem) for problem in caught.value.problems] == [
        "llm: got no weight 'layers.0.up_project.weight', expected shape [2, 3]"
        " (the checkpoint has 'layers.0.up_proj.weight')",
        "llm: got no weight 'head.weight', expected shape [9, 9]",
        "llm: norm.weight: got shape [4], expected shape [5]",
        "llm: got weight 'extra.bias', expected no such weight",
        "llm: got weight 'layers.0.up_proj.weight', expected no such weight",
    ]


def test_long_listings_are_cut(tmp_path: Path) -> None:
    expected = {f"layers.{i}.weight": (1,) for i in range(57)}
    with pytest.raises(ConfigError) as caught:
        check_weights(expected, checkpoint_with(tmp_path, {"norm.weight": (1,)}), ignore=["norm.*"])
    assert len(caught.value.problems) == 21
    assert "and 37 more missing weights" in str(caught.value)


# Text files


def test_text_files_are_those_of_the_folder(tmp_path: Path) -> None:
    write_folder(tmp_path)
    write_tokenizer(tmp_path)
    for name in ("chat_template.jinja", "README.md"):
        (tmp_path / name).write_text("{}")
    files = open_checkpoint(tmp_path).tokenizer_files()
    made = files.pop("generation_config.json")
    assert isinstance(made, bytes) and json.loads(made) == {"eos_token_id": 7}
    assert files == {
        name: tmp_path / name for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    }


def write_tokenizer(folder: Path) -> None:
    vocab = {token: id_ for id_, token in enumerate(_byte_alphabet())}
    end = AddedToken(id=256, content="<|end|>", special=True)
    made = bpe_tokenizer(vocab=vocab, merges=(), added=[end], pre="qwen2", where="test")
    (folder / "tokenizer.json").write_bytes(made)
    write_json(folder / "tokenizer_config.json", {"eos_token": "<|end|>", "chat_template": "{{ messages }}"})


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        ("tokenizer.json", lambda text: text[: len(text) // 2], "tokenizer.json: got .*expected a tokenizer"),
        ("tokenizer.json", lambda text: "{}", "tokenizer.json: got .*expected a tokenizer"),
        ("tokenizer.json", lambda text: text.replace('"ByteLevel"', '"Metaspace"'), "tokenizer.json"),
        ("tokenizer.json", lambda text: emptied(text), "tokenizer.json: got an empty vocabulary"),
        ("tokenizer_config.json", lambda text: text[:-5], "tokenizer_config.json"),
        (
            "tokenizer_config.json",
            lambda text: text.replace("{{", "{% if"),
            "tokenizer_config.json: chat_template: line",
        ),
        ("tokenizer_config.json", lambda text: text.replace('"{{ messages }}"', "7"), "got int, expected a Jinja"),
    ],
    ids=["cut", "empty", "another decoder", "no words", "cut config", "a template", "no text for a template"],
)
def test_a_damaged_tokenizer_is_refused(tmp_path: Path, file: str, damage: Callable[[str], str], said: str) -> None:
    write_tokenizer(write_folder(tmp_path))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tokenizer_files()
    (tmp_path / file).write_text(damage((tmp_path / file).read_text()))
    with pytest.raises(ConfigError, match=f"^{re.escape(str(tmp_path))}/.*{said}"):
        checkpoint.tokenizer_files()


def emptied(text: str) -> str:
    """A tokenizer without a vocabulary."""
    document = json.loads(text)
    document["model"]["vocab"] = {}
    return json.dumps({**document, "added_tokens": []})


def write_slow_tokenizer(folder: Path, kind: str) -> None:
    vocab = {token: id_ for id_, token in enumerate([*_byte_alphabet(), "hi", "Ġhi"])}
    write_json(folder / "vocab.json", vocab)
    (folder / "merges.txt").write_text("#version: 0.2\nh i\nĠ hi\n", encoding="utf-8")
    added = {"258": {"content": "<|end|>", "special": True}, "259": {"content": "<think>", "special": False}}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": kind, "added_tokens_decoder": added})


def test_tokenizer_is_rebuilt_from_vocabulary_and_merges(tmp_path: Path) -> None:
    write_slow_tokenizer(write_folder(tmp_path), "Qwen2Tokenizer")
    made = open_checkpoint(tmp_path).tokenizer_files()["tokenizer.json"]
    assert isinstance(made, bytes)
    (tmp_path / "tokenizer.json").write_bytes(made)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("hi hi<think><|end|>") == [256, 257, 259, 258]
    assert tokenizer.special_ids == {258}


def test_unknown_slow_tokenizer_is_refused(tmp_path: Path) -> None:
    write_slow_tokenizer(write_folder(tmp_path), "BertTokenizer")
    with pytest.raises(ConfigError, match="got 'BertTokenizer', expected Qwen2Tokenizer"):
        open_checkpoint(tmp_path).tokenizer_files()


def test_qwen2_cuts_text_as_its_own_tokenizer_does(tmp_path: Path) -> None:
    import tokenizers

    record = json.loads((Path(__file__).parents[1] / "io" / "transformers_text.json").read_text(encoding="utf-8"))
    end = AddedToken(id=0, content="<|end|>", special=True)
    made = bpe_tokenizer(vocab={"<|end|>": 0}, merges=(), added=[end], pre="qwen2", where="test")
    backend = tokenizers.Tokenizer.from_str(made.decode())
    for case in record["cuts"]["qwen2"]:
        text = backend.normalizer.normalize_str(case["text"])
        assert [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)] == case["pieces"]
