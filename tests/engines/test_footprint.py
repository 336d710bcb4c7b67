"""Memory of an engine, known before it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import onnx_ir as ir
import pytest

from framework.engines import manifest
from framework.engines.backend import compile_engine
from framework.engines.base import EngineSpec, TensorSpec
from framework.engines.footprint import MemoryRules, activations_of, footprint
from framework.engines.ort.backend import OnnxRuntimeCpu
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


def value(name: str, *dims: int | str, data: Any = None) -> ir.Value:
    tensor = None if data is None else ir.tensor(data)
    shape = ir.Shape(dims if tensor is None else tensor.shape) if dims or tensor is not None else None
    kind = FLOAT if tensor is None else ir.TensorType(tensor.dtype)
    return ir.Value(name=name, shape=shape, type=kind, const_value=tensor)


def network(
    inputs: list[ir.Value], outputs: list[ir.Value], nodes: list[ir.Node], weights: list[ir.Value], n: int = 4
) -> tuple[ir.Model, EngineSpec]:
    opsets = {"": 24, "com.microsoft": 1}
    graph = ir.Graph(inputs, outputs, nodes=nodes, initializers=weights, opset_imports=opsets, name="g")
    ends = [tuple(TensorSpec(name=str(v.name), dtype="float32", shape=("n",)) for v in vs) for vs in (inputs, outputs)]
    return ir.Model(graph, ir_version=11), EngineSpec(inputs=ends[0], outputs=ends[1], caps={"n": n})


def test_the_most_that_is_alive_at_once_is_counted() -> None:
    """x [4] -> a [4] -> b [40] -> y [1], and z [4] from a at the end: b lives beside a, not z; w2 is a weight."""
    x, a, b, y, z = value("x", "n"), value("a"), value("b"), value("y", 1), value("z", "n")
    weight, folded = value("w", data=np.zeros(4, np.float32)), value("w2", 4)
    nodes = [
        ir.Node("", "Neg", [weight], outputs=[folded]),
        ir.Node("", "Add", [x, folded], outputs=[a]),
        ir.Node("", "Concat", [a] * 10, outputs=[b], attributes=[ir.AttrInt64("axis", 0)]),
        ir.Node("", "ReduceMax", [b], outputs=[y]),
        ir.Node("", "Relu", [a], outputs=[z]),
    ]
    model, spec = network([x], [y, z], nodes, [weight])
    ends, between = 4 * (4 + 1 + 4), 4 * (4 + 40)
    assert activations_of(model, spec, MemoryRules()) == ends + between
    assert activations_of(model, spec, MemoryRules(arena=2.5)) == ends + 2.5 * between, "an arena has gaps"


def test_what_only_looks_at_another_value_takes_nothing_and_keeps_it() -> None:
    x, a, seen, b, y = value("x", "n"), value("a"), value("seen"), value("b"), value("y", 1, "n")
    shape = value("shape", data=np.array([1, -1], np.int64))
    nodes = [
        ir.Node("", "Relu", [x], outputs=[a]),
        ir.Node("", "Reshape", [a, shape], outputs=[seen]),
        ir.Node("", "Relu", [x], outputs=[b]),
        ir.Node("", "Add", [seen, b], outputs=[y]),
    ]
    model, spec = network([x], [y], nodes, [shape])
    assert activations_of(model, spec, MemoryRules()) == 4 * (4 + 4) + 4 * (4 + 4), "a, which is looked at, and b"


def test_a_value_of_unknown_shape_counts_as_the_largest_it_is_made_of() -> None:
    x, hidden, y = value("x", "n"), value("hidden"), value("y", "n")
    nodes = [ir.Node("", "Some", [x], outputs=[hidden]), ir.Node("", "Some", [hidden], outputs=[y])]
    model, spec = network([x], [y], nodes, [], n=10)
    assert activations_of(model, spec, MemoryRules()) == 4 * 30


def test_the_folder_of_a_record_is_not_opened(record: manifest.Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("opened"))
    assert footprint(record, 1).total > 0
