"""CTranslate2 files (`model.bin`) as a checkpoint in the official layout: names, config, packed projections apart.

A file is a list of named arrays: little-endian, row-major, in no alignment. Fused projections are rows below each
other, so every weight of the official checkpoint lies in the file as it is.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from framework.checkpoints.tensor import Tensor, numpy_dtype
from framework.errors import ConfigError, Problem
from framework.parsing import read_object

FILE_NAME = "model.bin"
_VERSIONS = (5, 6)  # of the file format; 5 and 6 differ in what the config beside it says
_DTYPES = {0: "float32", 1: "int8", 2: "int16", 3: "int32", 4: "float16", 5: "bfloat16"}
_FLOATS = ("float32", "float16", "bfloat16")
_MAX_RANK = 8

# Official names of a block's arrays, in the order in which rows are packed; "" packs nothing else.
_NORM = {"gamma": "weight", "beta": "bias"}
_LINEAR = {"weight": "weight", "bias": "bias"}
_SELF = (("q_proj", "k_proj", "v_proj"), ("out_proj",))
_CROSS = (("q_proj",), ("k_proj", "v_proj"), ("out_proj",))
_WHOLE = {
    "encoder/conv1": "model.encoder.conv1",
    "encoder/conv2": "model.encoder.conv2",
    "encoder/position_encodings/encodings": "model.encoder.embed_positions.weight",
    "decoder/position_encodings/encodings": "model.decoder.embed_positions.weight",
    "decoder/embeddings/weight": "model.decoder.embed_tokens.weight",
    "encoder/layer_norm": "model.encoder.layer_norm",
    "decoder/layer_norm": "model.decoder.layer_norm",
}
_BLOCK = re.compile(r"(encoder|decoder)/layer_(\d+)/(self_attention|attention|ffn)/(layer_norm|linear_(\d))/(\w+)")
_NORMS = {
    "self_attention": "self_attn_layer_norm",
    "attention": "encoder_attn_layer_norm",
    "ffn": "final_layer_norm",
}
_ATTENTION = {"self_attention": ("self_attn", _SELF), "attention": ("encoder_attn", _CROSS)}
_NOT_WEIGHTS = ("num_heads", "num_source_embeddings", "scale_embeddings")


@attrs.frozen(kw_only=True, eq=False)
class CTranslate2:
    """What is read from a file and the config beside it, in the official checkpoint's terms."""

    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def is_ctranslate2(path: Path) -> bool:
    """Whether a file begins as CTranslate2 writes it: a small version number and the name of a model."""
    try:
        with path.open("rb") as file:
            head = file.read(6)
            if len(head) < 6:
                return False
            version, length = struct.unpack("<IH", head)
            name = file.read(length)
    except OSError:
        return False
    return 0 < version < 100 and 1 < length < 100 and name.endswith(b"Spec\0")


def read_ctranslate2(path: Path) -> CTranslate2:
    """Read the header of a Whisper model; weights stay in the file.

    Raises:
        ConfigError: another format or model, a file that is cut short, weights in a format that is not read.
    """
    arrays = _read(path)
    unread = sorted({array.dtype for name, array in arrays.items() if array.shape and array.dtype not in _FLOATS})
    if unread:
        hint = "convert it again with --quantization float16; build.precision=int8 quantises here"
        expected = f"weights in {', '.join(_FLOATS)}"
        raise ConfigError(Problem(where=str(path), got=f"weights in {', '.join(unread)}", expected=expected, hint=hint))
    tensors: dict[str, Tensor] = {}
    for name, array in arrays.items():
        if name.rpartition("/")[2] in _NOT_WEIGHTS or not array.shape:
            continue
        found = list(_official(name, array))
        if not found:
            expected = "an array of a Whisper model"
            raise ConfigError(Problem(where=f"{path}: {name}", got="an unknown one", expected=expected))
        tensors.update({tensor.name: tensor for tensor in found})
    beside = read_object(path.parent / "config.json") if (path.parent / "config.json").exists() else {}
    config = _config(path, arrays, tensors)
    generation = {
        "suppress_tokens": beside.get("suppress_ids", []),
        "begin_suppress_tokens": beside.get("suppress_ids_begin", []),
        "eos_token_id": config["eos_token_id"],
        "decoder_start_token_id": config["decoder_start_token_id"],
    }
    return CTranslate2(config=config, generation_config=generation, tensors=tensors)


def _config(path: Path, arrays: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """config.json as the official checkpoint has it, from the shapes."""
    try:
        vocab, width = tensors["model.decoder.embed_tokens.weight"].shape
        encoder, decoder = _layers(tensors, "encoder"), _layers(tensors, "decoder")
        end = 50256 if vocab == 51864 else 50257  # English-only vocabularies lack one entry
        return {
            "architectures": ["WhisperForConditionalGeneration"],
            "model_type": "whisper",
            "vocab_size": vocab,
            "num_mel_bins": tensors["model.encoder.conv1.weight"].shape[1],
            "d_model": width,
            "encoder_layers": encoder,
            "encoder_attention_heads": _scalar(arrays["encoder/num_heads"]),
            "encoder_ffn_dim": tensors["model.encoder.layers.0.fc1.weight"].shape[0],
            "decoder_layers": decoder,
            "decoder_attention_heads": _scalar(arrays["decoder/num_heads"]),
            "decoder_ffn_dim": tensors["model.decoder.layers.0.fc1.weight"].shape[0],
            "max_source_positions": tensors["model.encoder.embed_positions.weight"].shape[0],
            "max_target_positions": tensors["model.decoder.embed_positions.weight"].shape[0],
            "eos_token_id": end,
            "decoder_start_token_id": end + 1,
        }
    except KeyError as missing:
        raise ConfigError(Problem(where=str(path), got=f"no {missing}", expected="a Whisper model")) from missing


def _layers(tensors: Mapping[str, Tensor], part: str) -> int:
    prefix = f"model.{part}.layers."
    return len({name.removeprefix(prefix).partition(".")[0] for name in tensors if name.startswith(prefix)})


def _scalar(tensor: Tensor) -> int:
    return int(tensor.array())


def _official(name: str, array: Tensor) -> Iterator[Tensor]:
    """The official weights that an array holds; none for an array that is not known."""
    if name in _WHOLE:
        yield attrs.evolve(array, name=_WHOLE[name])
        return
    owner, _, leaf = name.rpartition("/")
    if owner in _WHOLE and leaf in (_LINEAR | _NORM):
        yield attrs.evolve(array, name=f"{_WHOLE[owner]}.{(_LINEAR | _NORM)[leaf]}")
        return
    found = _BLOCK.fullmatch(name)
    if found is None:
        return
    part, layer, block, what, number, leaf = found.groups()
    prefix = f"model.{part}.layers.{layer}"
    if what == "layer_norm":
        if leaf in _NORM:
            yield attrs.evolve(array, name=f"{prefix}.{_NORMS[block]}.{_NORM[leaf]}")
        return
    if leaf not in _LINEAR:
        return
    if block == "ffn":
        yield attrs.evolve(array, name=f"{prefix}.fc{int(number) + 1}.{leaf}")
        return
    attention, packs = _ATTENTION[block]
    if int(number) < len(packs):
        for projection, rows in zip(packs[int(number)], _split(array, len(packs[int(number)])), strict=True):
            if (projection, leaf) != ("k_proj", "bias"):  # the official keys have none; here it is zero
                yield attrs.evolve(rows, name=f"{prefix}.{attention}.{projection}.{leaf}")


def _split(array: Tensor, parts: int) -> Iterator[Tensor]:
    rows, size = array.shape[0] // parts, array.nbytes // parts
    for part in range(parts):
        offset = array.offset + part * size
        yield attrs.evolve(array, shape=(rows, *array.shape[1:]), offset=offset, nbytes=size)


def _read(path: Path) -> dict[str, Tensor]:
    """Every array of the file by CTranslate2's own name."""
    size = path.stat().st_size
    with path.open("rb") as file:
        try:
            version, model = _number(file, "I"), _text(file)
            if version not in _VERSIONS:
                expected = f"version {' or '.join(map(str, _VERSIONS))}"
                raise ConfigError(Problem(where=str(path), got=f"format version {version}", expected=expected))
            if model != "WhisperSpec":
                raise ConfigError(Problem(where=str(path), got=f"a {model}", expected="a WhisperSpec"))
            _number(file, "I")  # revision of the model's own layout
            arrays = dict(_array(file, path) for _ in range(_number(file, "I")))
        except (struct.error, UnicodeDecodeError) as error:
            got = f"a header that is broken at byte {file.tell()}"
            raise ConfigError(Problem(where=str(path), got=got, expected="a CTranslate2 model")) from error
    end = max((array.offset + array.nbytes for array in arrays.values()), default=0)
    if end > size:
        raise ConfigError(Problem(where=str(path), got=f"{size} bytes", expected=f"at least {end}: it is cut short"))
    return arrays


def _array(file: BinaryIO, path: Path) -> tuple[str, Tensor]:
    name, rank = _text(file), _number(file, "B")
    if rank > _MAX_RANK:
        raise struct.error(f"rank {rank}")
    shape = tuple(_number(file, "I") for _ in range(rank))
    code, nbytes = _number(file, "B"), _number(file, "I")
    if code not in _DTYPES:
        expected = f"one of {', '.join(map(str, _DTYPES))}"
        raise ConfigError(Problem(where=f"{path}: {name}", got=f"dtype {code}", expected=expected))
    offset, count = file.tell(), 1
    for dim in shape:
        count *= dim
    if nbytes != count * numpy_dtype(_DTYPES[code]).itemsize:
        got = f"{nbytes} bytes for {_DTYPES[code]} {list(shape)}"
        raise ConfigError(Problem(where=f"{path}: {name}", got=got, expected="as many as its shape needs"))
    file.seek(nbytes, 1)
    return name, Tensor(name=name, dtype=_DTYPES[code], shape=shape, file=path, offset=offset, nbytes=nbytes)


def _number(file: BinaryIO, kind: str) -> int:
    return int(struct.unpack(f"<{kind}", file.read(struct.calcsize(kind)))[0])


def _text(file: BinaryIO) -> str:
    """A string and the zero byte behind it."""
    length = _number(file, "H")
    data = file.read(length)
    if len(data) < length:
        raise struct.error("cut short")
    return data[:-1].decode()
