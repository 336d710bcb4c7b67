"""Published weights in the official layout, from a folder, a GGUF or a CTranslate2 file, whatever they are for."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import attrs

from framework.checkpoints import ctranslate2, text_files
from framework.checkpoints.bpe import AddedToken, bpe_tokenizer
from framework.checkpoints.gguf import read_gguf
from framework.checkpoints.onnx_file import read_onnx
from framework.checkpoints.safetensors import read_safetensors
from framework.checkpoints.tensor import Tensor
from framework.checkpoints.text_files import Files
from framework.errors import ConfigError, Problem
from framework.parsing import read_object

_STEMS = ("model", "diffusion_pytorch_model")
_TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")
_SOURCES = (*_TEXT_FILES, "vocab.json", "merges.txt")  # what those are made from
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_LISTED = 20  # problems of one kind that are written out
_SAMPLE = 4096


@attrs.frozen(kw_only=True, eq=False)
class Checkpoint:
    """Weights and what belongs to them.

    Attributes:
        path: the folder, GGUF or CTranslate2 file.
        config: config.json, for the others made from what their file says.
        generation_config: generation_config.json; without one, the token ids that `config` has.
        tensors: by official name; nothing is read before `Tensor.array()`.
    """

    path: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    _text_files: Callable[[], Files]
    _text_digest: Callable[[], str]

    def tokenizer_files(self) -> dict[str, bytes | Path]:
        """What `Tokenizer.load` and `ChatTemplate.load` need beside an engine: file name -> bytes, or a path to copy.

        tokenizer.json (rebuilt where the checkpoint has only vocab.json and merges.txt, or is a GGUF),
        tokenizer_config.json, chat_template.jinja or .json, generation_config.json; those that exist.
        Raises ConfigError for a tokenizer that cannot be rebuilt, or cannot be used, and for a malformed chat template.
        """
        generation = json.dumps(self.generation_config, indent=2).encode()
        files = {**self._text_files(), "generation_config.json": generation}
        text_files.check(files, self.path)
        return files

    @property
    def fingerprint(self) -> str:
        """Two sums, with a dot between: of the weights with their config, and of tokenizer and chat template."""
        return f"{self._weights_digest}.{self._text_digest()}"

    def changed_since(self, fingerprint: str) -> str:
        """In words, what is not as it was when the fingerprint was taken; "" when all is.

        One without the second sum, of an engine older than it, says nothing of the tokenizer.
        """
        weights, _, text = fingerprint.partition(".")
        if weights != self._weights_digest:
            return "other weights or another config"
        return "another tokenizer or chat template" if text not in ("", self._text_digest()) else ""

    @cached_property
    def _weights_digest(self) -> str:
        """Sha-256 of the config and, of every weight, name, dtype, shape and the 4 KiB in its middle: two trainings
        differ in it and it is quick for any size, but it is no checksum of the whole.

        Sub-folders that are checkpoints too, such as a speech tokenizer, are part of it. An engine recorded when they
        were not is taken for one of other weights."""
        digest = hashlib.sha256(json.dumps([self.config, self.generation_config], sort_keys=True).encode())
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
            middle = max(0, (tensor.nbytes - _SAMPLE) // 2)
            digest.update(tensor.raw()[middle : middle + _SAMPLE].tobytes())
        for config in sorted(self.path.glob("*/config.json")):
            with contextlib.suppress(ConfigError):  # told where somebody builds of it
                digest.update(f"{config.parent.name} {open_checkpoint(config.parent).fingerprint}".encode())
        return digest.hexdigest()


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a folder in the official layout, a `.gguf` file, a folder that holds exactly one, or CTranslate2's
    `model.bin` or its folder, or an `.onnx` file, whose weights are part of a ready-made network.

    An official folder has config.json and model.safetensors, or model.safetensors.index.json with its shards (also
    under the name diffusion_pytorch_model). Raises ConfigError with every fault found: files missing or malformed,
    shards that are not there or outside the folder, weights that the index lists and its shard lacks.
    """
    if path.is_file() and path.suffix == ".gguf":
        return _open_gguf(path)
    if path.is_file() and ctranslate2.is_ctranslate2(path):
        return _open_ctranslate2(path)
    if path.is_file() and path.suffix == ".onnx":
        return _open_onnx(path)
    if not path.is_dir():
        got = "another kind of file" if path.exists() else "no such file or folder"
        raise ConfigError(Problem(where=str(path), got=got, expected="a checkpoint folder or a .gguf file"))
    if ctranslate2.is_ctranslate2(path / ctranslate2.FILE_NAME):
        return _open_ctranslate2(path / ctranslate2.FILE_NAME)
    if not (path / "config.json").exists():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return _open_gguf(files[0])
        got = ", ".join(file.name for file in files) or "neither"
        raise ConfigError(Problem(where=str(path), got=got, expected="config.json, or exactly one .gguf file"))
    return _open_folder(path)


def check_weights(
    expected: Mapping[str, tuple[int, ...]],
    checkpoint: Checkpoint,
    *,
    ignore: Collection[str] = (),
    where: str = "",
) -> None:
    """Raises ConfigError unless the checkpoint has exactly the expected weights.

    Args:
        expected: shape of each weight by its official name.
        ignore: patterns (`*.rotary_emb.inv_freq`) of names that may be in the checkpoint and are not used.
        where: names what the weights are for, such as a component; default the checkpoint's path.
    """
    where = where or str(checkpoint.path)
    found = checkpoint.tensors
    missing = [name for name in expected if name not in found]
    unused = [name for name in found if name not in expected and not any(fnmatchcase(name, p) for p in ignore)]
    misshapen = [name for name, dims in expected.items() if name in found and found[name].shape != tuple(dims)]
    candidates = unused[:1000]  # matching names is slow

    def shape(dims: Iterable[int]) -> str:
        return f"shape {list(dims)}"

    def hint(name: str) -> str:
        close = difflib.get_close_matches(name, candidates, n=1, cutoff=0.8)
        return f"the checkpoint has {close[0]!r}" if close else ""

    problems = [
        *(
            Problem(where=where, got=f"no weight {name!r}", expected=shape(expected[name]), hint=hint(name))
            for name in missing[:_LISTED]
        ),
        *_more(missing, where, "missing weights", "all of them"),
        *(
            Problem(where=f"{where}: {name}", got=shape(found[name].shape), expected=shape(expected[name]))
            for name in misshapen[:_LISTED]
        ),
        *_more(misshapen, where, "weights of another shape", "the shapes of the network"),
        *(Problem(where=where, got=f"weight {name!r}", expected="no such weight") for name in unused[:_LISTED]),
        *_more(unused, where, "weights that nothing uses", "none left over"),
    ]
    if problems:
        raise ConfigError(problems)


def _more(names: Collection[str], where: str, what: str, expected: str) -> list[Problem]:
    count = len(names) - _LISTED
    return [Problem(where=where, got=f"and {count} more {what}", expected=expected)] if count > 0 else []


@contextlib.contextmanager
def _collect(problems: list[Problem]) -> Iterator[None]:
    """Keeps the problems of a ConfigError and goes on."""
    try:
        yield
    except ConfigError as error:
        problems += error.problems


def _open_gguf(path: Path) -> Checkpoint:
    file = read_gguf(path)
    return Checkpoint(
        path=path,
        config=file.config,
        generation_config=file.generation_config,
        tensors=file.tensors,
        text_files=file.tokenizer_files,
        text_digest=lambda: text_files.digest(_tokenizer_keys(file.metadata)),
    )


def _tokenizer_keys(metadata: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    for key in sorted(metadata):
        if key.startswith("tokenizer."):
            yield key, json.dumps(metadata[key], default=str).encode()


def _open_ctranslate2(path: Path) -> Checkpoint:
    file = ctranslate2.read_ctranslate2(path)
    return Checkpoint(
        path=path,
        config=file.config,
        generation_config=file.generation_config,
        tensors=file.tensors,
        text_files=lambda: _folder_text_files(path.parent),
        text_digest=lambda: _folder_text_digest(path.parent),
    )


def _open_onnx(path: Path) -> Checkpoint:
    config, tensors = read_onnx(path)
    return Checkpoint(
        path=path, config=config, generation_config={}, tensors=tensors, text_files=dict, text_digest=lambda: ""
    )


def _open_folder(path: Path) -> Checkpoint:
    problems: list[Problem] = []
    config: Mapping[str, Any] = {}
    generation: Mapping[str, Any] | None = None
    tensors: Mapping[str, Tensor] = {}
    with _collect(problems):
        config = read_object(path / "config.json")
    with _collect(problems):
        if (path / "generation_config.json").exists():
            generation = read_object(path / "generation_config.json")
    with _collect(problems):
        tensors = _folder_tensors(path)
    if problems:
        raise ConfigError(problems)
    if generation is None:
        generation = {name: config[name] for name in _TOKEN_IDS if config.get(name) is not None}
    return Checkpoint(
        path=path,
        config=config,
        generation_config=generation,
        tensors=tensors,
        text_files=lambda: _folder_text_files(path),
        text_digest=lambda: _folder_text_digest(path),
    )


def _folder_tensors(path: Path) -> dict[str, Tensor]:
    for stem in _STEMS:
        if (index := path / f"{stem}.safetensors.index.json").exists():
            return _sharded_tensors(index)
        if (file := path / f"{stem}.safetensors").exists():
            return read_safetensors(file)
    others = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in path.glob(pattern))
    got = f"no such file (but {', '.join(others[:3])}, which may hold code)" if others else "no such file"
    expected = "model.safetensors or model.safetensors.index.json"
    raise ConfigError(Problem(where=str(path), got=got, expected=expected))


def _sharded_tensors(index: Path) -> dict[str, Tensor]:
    weights = read_object(index).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(shard, str) for shard in weights.values()):
        expected = "an object of weight name to file name"
        raise ConfigError(Problem(where=f"{index}: weight_map", got=type(weights).__name__, expected=expected))
    problems: list[Problem] = []
    shards: dict[str, dict[str, Tensor]] = {}
    for shard in sorted(set(weights.values())):
        relative = PurePosixPath(shard)
        if relative.is_absolute() or ".." in relative.parts or "\\" in shard or not shard:
            problems.append(Problem(where=f"{index}: weight_map", got=repr(shard), expected="a file in this folder"))
            continue
        with _collect(problems):
            shards[shard] = read_safetensors(index.parent / shard)
    tensors = {name: tensor for shard in shards.values() for name, tensor in shard.items()}
    for name, shard in weights.items():
        if shard not in shards:
            continue
        if name in shards[shard]:
            tensors[name] = shards[shard][name]
        else:
            got = f"{shard} without it"
            problems.append(Problem(where=f"{index}: {name}", got=got, expected="a weight of that file"))
    if problems:
        raise ConfigError(problems)
    return tensors


def _folder_text_files(path: Path) -> Files:
    files: dict[str, bytes | Path] = {name: path / name for name in _TEXT_FILES if (path / name).exists()}
    if "tokenizer.json" not in files and (path / "vocab.json").exists() and (path / "merges.txt").exists():
        files["tokenizer.json"] = _rebuilt_tokenizer(path)
    return files


def _folder_text_digest(path: Path) -> str:
    found = [path / name for name in _SOURCES if (path / name).is_file()]
    return text_files.digest((file.name, file.read_bytes()) for file in found)


def _rebuilt_tokenizer(path: Path) -> bytes:
    """From vocab.json, merges.txt and the added tokens of tokenizer_config.json."""
    config = read_object(path / "tokenizer_config.json")
    kind = str(config.get("tokenizer_class", "")).removesuffix("Fast")
    if kind != "Qwen2Tokenizer":
        where = f"{path / 'tokenizer_config.json'}: tokenizer_class"
        expected = "Qwen2Tokenizer where there is no tokenizer.json"
        raise ConfigError(Problem(where=where, got=repr(kind), expected=expected))
    lines = (path / "merges.txt").read_text(encoding="utf-8").split("\n")
    added = config.get("added_tokens_decoder", {})
    return bpe_tokenizer(
        vocab=read_object(path / "vocab.json"),
        merges=[line.split(" ") for line in lines if line and not line.startswith("#version")],
        added=[AddedToken(id=int(i), content=t["content"], special=t.get("special", False)) for i, t in added.items()],
        pre="qwen2",
        where=str(path),
    )
