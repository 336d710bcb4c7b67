"""Mixtures of experts as ONNX Runtime's grouped kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gguf
import numpy as np
import onnx_ir as ir
import pytest
from gguf import GGMLQuantizationType as Type
from onnxscript import OpBuilder, nn

from framework.checkpoints.tensor import Blocks
from framework.engines.backend import Backend
from framework.engines.base import TensorSpec
from framework.engines.cuda.backend import OnnxRuntimeCuda
from framework.engines.ort.backend import OnnxRuntimeCpu
from framework.engines.passes.moe import NOTE, group_experts_cuda
from framework.engines.passes.weights import BLOCK, round_blocks
from framework.engines.pieces import PiecedTensor
from framework.engines.tensorrt.backend import TensorRT
from framework.nn import MoE, SharedMoE, export, shape_of
from tests.engines.passes.running import rewritten, run

HIDDEN, INNER, EXPERTS = 64, 32, 6
X = np.random.default_rng(3).standard_normal((2, 5, HIDDEN)).astype(np.float32)
Array = np.ndarray[Any, Any]


class Net(nn.Module):
    def __init__(self, mixture: nn.Module) -> None:
        super().__init__()
        self.mlp = mixture

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        return {"y": self.mlp(op, given["x"])}


def weights_of(network: nn.Module) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    shapes = {name: shape_of(parameter) for name, parameter in network.named_parameters()}
    return {name: (rng.standard_normal(s) * 2 / s[-1] ** 0.5).astype(np.float32) for name, s in shapes.items()}


def model_of(mixture: nn.Module, weights: Mapping[str, Any] | None = None, precision: str = "fp32") -> ir.Model:
    network = Net(mixture)
    hidden = shape_of(dict(network.named_parameters())["mlp.gate.weight"])[1]
    shape = ("batch", "tokens", hidden)
    inputs, outputs = ([TensorSpec(name=name, dtype="float32", shape=shape)] for name in "xy")
    found = weights or {name: ir.tensor(array) for name, array in weights_of(network).items()}
    model = export(network, inputs, outputs, found)
    model.metadata_props["precision"] = precision
    return model


def grouped(model: ir.Model) -> ir.Model:
    return rewritten(model, OnnxRuntimeCpu())


def types(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("norm_topk", [False, True], ids=["raw", "normed"])
@pytest.mark.parametrize("top_k", [1, 2, EXPERTS])
def test_experts_of_fp32_give_the_same_numbers(top_k: int, norm_topk: bool) -> None:
    def mixture() -> MoE:
        return MoE(HIDDEN, INNER, experts=EXPERTS, top_k=top_k, norm_topk=norm_topk)

    expected = run(model_of(mixture()), x=X)["y"]
    model = grouped(model_of(mixture()))
    assert types(model).count("MoE") == 1 and not {"TopK", "ReduceSum", "Softmax"} & {*types(model)}
    np.testing.assert_allclose(run(model, x=X)["y"], expected, atol=2e-6, rtol=1e-5)


def test_a_shared_expert_stays_beside_the_grouped_ones() -> None:
    def mixture() -> MoE:
        return SharedMoE(HIDDEN, INNER, shared=96, experts=EXPERTS, top_k=2, norm_topk=True)

    model = grouped(model_of(mixture()))
    assert types(model).count("MoE") == 1
    np.testing.assert_allclose(run(model, x=X)["y"], run(model_of(mixture()), x=X)["y"], atol=3e-6, rtol=1e-5)


def rounded(array: Array, bits: int, block: int = BLOCK) -> Array:
    """What `round_blocks` makes of a stack of matrices."""
    made = round_blocks(array.reshape(-1, array.shape[-1]), bits, block)
    blocks = made.quants.reshape(*made.scales.shape, block).astype(np.float32) - made.zeros[..., None]
    return np.asarray((blocks * made.scales[..., None]).reshape(array.shape))


@pytest.mark.parametrize("norm_topk", [False, True], ids=["raw", "normed"])
@pytest.mark.parametrize("bits", [4, 8])
def test_experts_of_few_bits_are_those_of_their_blocks(bits: int, norm_topk: bool) -> None:
    def mixture() -> MoE:
        return MoE(HIDDEN, INNER, experts=EXPERTS, top_k=2, norm_topk=norm_topk)

    weights = weights_of(Net(mixture()))
    stored = {name: ir.tensor(rounded(w, bits) if "experts" in name else w) for name, w in weights.items()}
    expected = run(model_of(mixture(), stored), x=X)["y"]
    model = grouped(model_of(mixture(), precision=f"int{bits}"))
    assert types(model).count("QMoE") == 1
    held = sum(v.const_value.nbytes for n, v in model.graph.initializers.items() if "experts" in n and v.const_value)
    assert held <= 3 * EXPERTS * HIDDEN * INNER * (bits + 1.5) / 8
    error = run(model, x=X)["y"] - expected
    assert np.sqrt((error**2).mean() / (expected**2).mean()) < 0.03  # of activations rounded to 8 bits


@pytest.mark.parametrize("asked", [64, 128])
def test_experts_have_blocks_of_the_size_that_fits_both_widths(asked: int) -> None:
    def mixture() -> MoE:
        return MoE(128, 64, experts=EXPERTS, top_k=2, norm_topk=True)

    x = np.random.default_rng(4).standard_normal((2, 5, 128)).astype(np.float32)
    weights = weights_of(Net(mixture()))
    stored = {name: ir.tensor(rounded(w, 4, 64) if "experts" in name else w) for name, w in weights.items()}
    expected = run(model_of(mixture(), stored), x=x)["y"]
    asked_for = {name: ir.tensor(weight) for name, weight in weights.items()}
    for weight in asked_for.values():
        weight.meta["blocks"] = lambda: None  # as of a checkpoint that has none
    model = model_of(mixture(), asked_for, precision="int4")
    model.metadata_props["block_size"] = str(asked)
    model = grouped(model)
    (node,) = (node for node in model.graph if node.op_type == "QMoE")
    assert node.attributes["block_size"].as_int() == 64
    error = run(model, x=x)["y"] - expected
    assert np.sqrt((error**2).mean() / (expected**2).mean()) < 0.03  # of activations rounded to 8 bits


def test_all_tokens_of_a_few_bits_equal_one_at_a_time() -> None:
    model = grouped(
        model_of(MoE(HIDDEN, INNER, experts=EXPERTS, top_k=2, norm_topk=True), precision="int4"),
    )
    one = [run(model, x=X[:1, at : at + 1])["y"] for at in range(5)]
    np.testing.assert_allclose(run(model, x=X[:1])["y"], np.concatenate(one, axis=1), atol=1e-5)


def test_the_blocks_of_a_checkpoint_are_carried_over() -> None:
    """Q4_0 experts, whose rounding would move them if it were done again."""
    network = Net(MoE(HIDDEN, INNER, experts=EXPERTS, top_k=2, norm_topk=True))
    arrays, tensors = weights_of(network), {}
    for name, array in arrays.items():
        if "experts" not in name:
            tensors[name] = ir.tensor(array)
            continue
        raw = gguf.quants.quantize(array, Type.Q4_0)
        rows = raw.reshape(*array.shape[:-1], array.shape[-1] // 32, -1)
        blocks = Blocks(
            format="Q4_0",
            quants=np.concatenate([rows[..., 2:] & 15, rows[..., 2:] >> 4], axis=-1).reshape(array.shape),
            scales=np.ascontiguousarray(rows[..., :2]).view(np.float16)[..., 0],
        )
        value = np.asarray(gguf.quants.dequantize(raw, Type.Q4_0)).reshape(array.shape)
        tensors[name] = ir.tensor(value)
        tensors[name].meta["blocks"] = lambda blocks=blocks: blocks
    mixture = {"experts": EXPERTS, "top_k": 2, "norm_topk": True}
    expected = run(model_of(MoE(HIDDEN, INNER, **mixture), tensors), x=X)["y"]  # type: ignore[arg-type]
    found = run(grouped(model_of(MoE(HIDDEN, INNER, **mixture), tensors, "int4")), x=X)["y"]  # type: ignore[arg-type]
    assert np.sqrt(((found - expected) ** 2).mean() / (expected**2).mean()) < 0.03  # of activations alone


def test_experts_that_blocks_do_not_divide_stay_fp32() -> None:
    def mixture() -> MoE:
        return MoE(40, 24, experts=EXPERTS, top_k=2, norm_topk=True)

    model = grouped(model_of(mixture(), precision="int4"))
    assert types(model).count("MoE") == 1
    x = X[..., :40]
    np.testing.assert_allclose(run(model, x=x)["y"], run(model_of(mixture()), x=x)["y"], atol=2e-6, rtol=1e-5)


def test_experts_of_16_bits_are_widened_when_the_engine_loads() -> None:
    def mixture() -> MoE:
        return MoE(HIDDEN, INNER, experts=EXPERTS, top_k=2, norm_topk=True)

    model = grouped(model_of(mixture(), precision="bf16"))
    stored = [v.const_value for n, v in model.graph.initializers.items() if "experts" in n]
    assert {tensor.dtype for tensor in stored if tensor} == {ir.DataType.BFLOAT16}
    expected = run(model_of(mixture()), x=X)["y"]
    assert 0 < np.abs(run(model, x=X)["y"] - expected).max() < 0.1


@pytest.mark.parametrize("backend", [OnnxRuntimeCpu(), OnnxRuntimeCuda(), TensorRT()], ids=lambda backend: backend.name)
@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_more_experts_are_no_more_nodes(backend: Backend, precision: str) -> None:
    sizes = []
    for experts in (4, 64):
        model = model_of(MoE(HIDDEN, INNER, experts=experts, top_k=2, norm_topk=True), precision=precision)
        sizes.append(len(rewritten(model, backend).graph))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(("width", "grouped"), [(128, True), (64, False)])
def test_cuda_groups_experts_of_fp16_whose_widths_its_kernel_takes(width: int, grouped: bool) -> None:
    def types(dtype: ir.DataType) -> list[str]:
        model = model_of(MoE(128, width, experts=2, top_k=1, norm_topk=True))
        noted = next(node for node in model.graph if NOTE in node.meta)
        noted.outputs[0].dtype = dtype
        return [node.op_type for node in group_experts_cuda(model).graph]

    assert ("MoE" in types(ir.DataType.FLOAT16)) == grouped
    assert "MoE" in types(ir.DataType.FLOAT)


def test_experts_are_made_one_at_a_time_and_once(tmp_path: Any) -> None:
    network = Net(MoE(HIDDEN, INNER, experts=EXPERTS, top_k=2, norm_topk=True))
    made: list[tuple[str, int]] = []

    def piece(name: str, array: Array, expert: int) -> Array:
        made.append((name, expert))
        return array[expert : expert + 1]

    tensors: dict[str, Any] = {name: ir.tensor(array) for name, array in weights_of(network).items()}
    for name, array in weights_of(network).items():
        if "experts" in name:
            pieces = [lambda n=name, a=array, e=expert: piece(n, a, e) for expert in range(EXPERTS)]
            tensors[name] = PiecedTensor(pieces, ir.DataType.FLOAT, array.shape)
    mixture = MoE(HIDDEN, INNER, experts=EXPERTS, top_k=2, norm_topk=True)
    model = grouped(model_of(mixture, tensors, "int4"))
    assert not made
    ir.save(model, tmp_path / "model.onnx", external_data="model.onnx.data")
    assert len(made) == 3 * EXPERTS == len({*made})
