"""Memory of an engine, known before it is loaded."""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
import onnx_ir as ir
import pytest

from framework.engines import manifest
from framework.engines.backend import OnnxRuntimeCpu, compile_engine
from framework.engines.base import EngineSpec, TensorSpec
from framework.engines.footprint import activations_of, footprint
from tests.engines.passes.running import CAPACITY, CONFIG, decoder

FLOAT = ir.TensorType(ir.DataType.FLOAT)
STATES = {"history": "history.next"} | {
    f"{kind}_cache.{layer}": f"{kind}_cache.{layer}.next" for layer in range(CONFIG.layers) for kind in ("key", "value")
}
CAPS = {"batch": 4, "tokens": 8, "candidates": CONFIG.vocab}


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def record(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> manifest.Manifest:
    model = decoder()
    model.metadata_props["precision"] = request.param
    folder = tmp_path_factory.mktemp("engine")
    options = {"precision": request.param}
    compile_engine(model, folder, OnnxRuntimeCpu(threads=1), states=STATES, caps=CAPS, options=options)
    return manifest.read(folder)


def test_states_are_counted_for_the_rows_that_run(record: manifest.Manifest) -> None:
    a_row = 8 * CAPACITY + CONFIG.layers * 2 * CONFIG.kv_heads * CAPACITY * CONFIG.head_dim * 4
    assert footprint(record, 3).states == 3 * a_row
    assert footprint(record, 9).states == 4 * a_row, "no more rows than the engine was built for"
    assert footprint(attrs.evolve(record, in_place={}), 3).states == 6 * a_row, "a second buffer where none is shared"


def test_16_bit_weights_are_widened_where_the_cpu_loads_them(record: manifest.Manifest) -> None:
    stored = sum(file.bytes for name, file in record.files.items() if name.endswith(".data"))
    factor = 4 if record.options["precision"] == "bf16" else 1
    assert footprint(record, 1).weights - 30_000_000 == pytest.approx(stored * factor, rel=0.25)  # pages and norms


def test_activations_grow_with_the_rows(record: manifest.Manifest) -> None:
    one, four = footprint(record, 1).activations, footprint(record, 4).activations
    assert four == pytest.approx(4 * one, rel=0.01)
    assert 4 * 8 * CONFIG.intermediate * 2 * 4 <= four < 4 * 8 * CONFIG.intermediate * 2 * 4 * 10


def test_a_record_of_an_older_build_counts_files_and_ends(record: manifest.Manifest) -> None:
    old = footprint(attrs.evolve(record, weights=0, activations=0), 2)
    assert old.weights == sum(file.bytes for file in record.files.values())
    assert 0 < old.activations < footprint(record, 2).activations * 4


def test_the_most_that_is_alive_at_once_is_counted() -> None:
    """x [4] -> a [4] -> b [40] -> y [4], and z [4] from a at the end: b lives beside x, a and y, not beside z."""

    def value(name: str, size: int | str) -> ir.Value:
        return ir.Value(name=name, shape=ir.Shape([size]), type=FLOAT)

    x, a, b, y, z = (
        value(name, size) for name, size in (("x", "n"), ("a", "n"), ("b", "10*n"), ("y", "n"), ("z", "n"))
    )
    weight = ir.Value(name="w", shape=ir.Shape([99]), type=FLOAT, const_value=ir.tensor(np.zeros(99, np.float32)))
    folded = value("w2", 99)
    nodes = [
        ir.Node("", "Neg", [weight], outputs=[folded]),
        ir.Node("", "Relu", [x], outputs=[a]),
        ir.Node("", "Tile", [a, folded], outputs=[b]),
        ir.Node("", "Some", [b], outputs=[y]),
        ir.Node("", "Relu", [a], outputs=[z]),
    ]
    graph = ir.Graph([x], [y, z], nodes=nodes, initializers=[weight], opset_imports={"": 24}, name="g")
    ends = [TensorSpec(name=name, dtype="float32", shape=("n",)) for name in "xyz"]
    spec = EngineSpec(inputs=(ends[0],), outputs=tuple(ends[1:]), caps={"n": 4})
    model = ir.Model(graph, ir_version=11)
    assert activations_of(model, spec, "cuda") == 4 * (4 + 4 + 40 + 4)
    assert activations_of(model, spec, "cpu") == 2 * activations_of(model, spec, "cuda"), "an arena grows by doubling"


def test_a_value_of_unknown_shape_counts_as_the_largest_it_is_made_of() -> None:
    x, hidden, y = (ir.Value(name=name, type=FLOAT) for name in ("x", "hidden", "y"))
    x.shape = y.shape = ir.Shape(["n"])
    graph = ir.Graph(
        [x],
        [y],
        nodes=[ir.Node("", "Relu", [x], outputs=[hidden]), ir.Node("", "Relu", [hidden], outputs=[y])],
        name="g",
    )
    ends = [TensorSpec(name=name, dtype="float32", shape=("n",)) for name in "xy"]
    spec = EngineSpec(inputs=(ends[0],), outputs=(ends[1],), caps={"n": 10})
    assert activations_of(ir.Model(graph, ir_version=11), spec, "cuda") == 4 * 30


def test_the_folder_of_a_record_is_not_opened(record: manifest.Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("opened"))
    assert footprint(record, 1).total > 0
