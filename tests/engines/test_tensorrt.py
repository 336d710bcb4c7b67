"""TensorRT-RTX up to the serialised plan, on a machine that may have no GPU."""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
import onnx_ir as ir
import pytest

from framework.engines import manifest
from framework.engines.backend import compile_engine, open_engine
from framework.engines.cuda.memory import DeviceMemory
from framework.engines.tensorrt.backend import TensorRT
from framework.errors import ConfigError
from tests.engines import tiny
from tests.engines.tiny import CAPS, network

trt = pytest.importorskip("tensorrt_rtx", reason="the package tensorrt-rtx is not installed")

ADA = TensorRT(module="tensorrt_rtx", compute_capability="8.9")
HEADS, SIZE = 2, 64

# One attention layer of a decoder in the operators of opset 24, with its cache: [batch, heads, capacity, size].
LAYER = """(
    float16[batch, tokens, 128] x, int64[batch, tokens] position, int64[batch] start,
    bool[batch, 1, tokens, capacity] mask,
    float16[batch, 2, capacity, 64] keys, float16[batch, 2, capacity, 64] values,
    float16[128] norm, float16[128, 128] q_proj, float16[128, 128] k_proj, float16[128, 128] v_proj,
    float16[8, 32] cos, float16[8, 32] sin
) => (
    float16[batch, tokens, 128] y, float16[batch, 2, capacity, 64] keys_out, float16[batch, 2, capacity, 64] values_out
) <int64[4] split = {0, 0, 2, 64}, int64[3] join = {0, 0, 128}> {
    h = RMSNormalization<axis = -1, epsilon = 0.00001>(x, norm)
    q = MatMul(h, q_proj)
    k = MatMul(h, k_proj)
    v = MatMul(h, v_proj)
    q4 = Reshape(q, split)
    k4 = Reshape(k, split)
    v4 = Reshape(v, split)
    qt = Transpose<perm = [0, 2, 1, 3]>(q4)
    kt = Transpose<perm = [0, 2, 1, 3]>(k4)
    vt = Transpose<perm = [0, 2, 1, 3]>(v4)
    qr = RotaryEmbedding(qt, cos, sin, position)
    kr = RotaryEmbedding(kt, cos, sin, position)
    keys_out = TensorScatter<axis = 2>(keys, kr, start)
    values_out = TensorScatter<axis = 2>(values, vt, start)
    a = Attention(qr, keys_out, values_out, mask)
    at = Transpose<perm = [0, 2, 1, 3]>(a)
    aj = Reshape(at, join)
    y = Add(x, aj)
}"""
STATES = {"keys": "keys_out", "values": "values_out"}


def layer() -> ir.Model:
    rng = np.random.default_rng(0)
    shapes = {"norm": (128,), "cos": (8, 32), "sin": (8, 32)}
    shapes |= {f"{name}_proj": (128, 128) for name in "qkv"}
    return network(LAYER, {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()})


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layer")
    compile_engine(layer(), folder, ADA, states=STATES, caps=CAPS, opt={"tokens": 1})
    return folder


def test_a_decoder_layer_becomes_a_plan(plan: Path) -> None:
    record = manifest.read(plan)
    assert {path.name for path in plan.iterdir()} == {"engine.plan", "engine.json"}
    assert record.files["engine.plan"].bytes > 10_000
    assert record.options["compute_capability"] == "8.9"
    assert record.versions["tensorrt-rtx"] == trt.__version__
    assert [state.input.shape for state in record.spec.states] == [("batch", HEADS, "capacity", SIZE)] * 2


def test_every_node_the_parser_refuses_is_named(tmp_path: Path) -> None:
    body = """(float[batch, n] x, float[n, n] a) => (float[batch, n] y, float d, float[batch, n] z) {
        y = Bernoulli(x)
        d = Det(a)
        z = Relu(x)
    }"""
    with pytest.raises(ConfigError) as error:
        compile_engine(network(body), tmp_path, ADA, states={}, caps=CAPS | {"n": 4})
    assert "Bernoulli" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_an_unknown_gpu_lists_those_that_can_be_built_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"got '3\.5', expected one of .*8\.9.*12\.0"):
        compile_engine(
            network(tiny.SCALE), tmp_path, attrs.evolve(ADA, compute_capability="3.5"), states={}, caps=CAPS | {"n": 4}
        )


def test_a_plan_of_another_version_is_refused(plan: Path) -> None:
    record = manifest.read(plan)
    try:
        manifest.write(plan, attrs.evolve(record, versions=dict(record.versions) | {"tensorrt-rtx": "1.0.0"}))
        with pytest.raises(ConfigError, match=r"a plan of tensorrt-rtx 1\.0\.0, expected one of the installed"):
            open_engine(plan, ADA)
    finally:
        manifest.write(plan, record)


def test_a_plan_is_not_loaded_without_its_gpu(plan: Path) -> None:
    """Without a GPU that is said; on another GPU than it was built for, both are named."""
    cudart = pytest.importorskip("cuda.bindings.runtime", reason="the package cuda-python is not installed")
    error, count = cudart.cudaGetDeviceCount()
    expected = "a plan for compute capability 8.9" if not int(error) and count else "expected an NVIDIA GPU"
    if expected.endswith("8.9") and DeviceMemory(0).compute_capability == "8.9":
        pytest.skip("this is the GPU it was built for")
    with pytest.raises(ConfigError, match=expected):
        open_engine(plan, ADA)


def test_the_package_that_is_not_installed_is_named(tmp_path: Path) -> None:
    try:
        import tensorrt  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match=r"pip install 'multistage\[tensorrt\]'"):
            compile_engine(network(tiny.SCALE), tmp_path, TensorRT(), states={}, caps=CAPS | {"n": 4})
    else:
        pytest.skip("tensorrt is installed")
