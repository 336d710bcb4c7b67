"""Compiling and opening: what a model must be, and what an engine folder must hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.engines import manifest
from framework.engines.backend import compile_engine, open_engine, shared
from framework.engines.cuda.backend import OnnxRuntimeCuda
from framework.engines.ort.backend import OnnxRuntimeCpu
from framework.engines.tensorrt.backend import TensorRT
from framework.engines.verify import in_place
from framework.errors import ConfigError
from tests.engines import tiny
from tests.engines.tiny import CAPS, CPU, built, network

MATMUL = "(float[batch, 4] x, float[4, 999999] w) => (float[batch, 999999] y) { y = MatMul(x, w) }"


def faults(error: pytest.ExceptionInfo[ConfigError]) -> list[str]:
    return [str(problem) for problem in error.value.problems]


def test_a_build_records_what_made_it(tmp_path: Path) -> None:
    model = network(tiny.ACCUMULATOR)
    made = compile_engine(
        model, tmp_path, CPU, states={"total": "total_out"}, caps=CAPS, checkpoint="abc", options={"precision": "int4"}
    )
    assert manifest.read(tmp_path) == made
    assert (made.backend, made.checkpoint, made.options["precision"]) == ("cpu", "abc", "int4")
    assert made.options["backend"]["threads"] == 1
    assert made.versions["onnxruntime"]
    assert made.files["model.onnx"].bytes == (tmp_path / "model.onnx").stat().st_size


def test_every_fault_of_a_model_is_named_at_once(tmp_path: Path) -> None:
    body = """(float[batch, length] x, float[4] w, int64[batch] count)
    => (float[batch, length] y, int32[batch] count_out) {
        z = MatMull(x, x)
        y = Mul(z, w)
        count_out = Cast<to = 6>(count)
    }"""
    with pytest.raises(ConfigError) as error:
        compile_engine(
            network(body, {"w": None}), tmp_path, CPU, states={"count": "count_out", "cash": "y"}, caps={"batch": 1}
        )
    found = faults(error)
    named = ["w: got no data", "operator MatMull", "dimension 'length'", "int32[batch] as 'count_out'", "'cash'"]
    assert all(part in text for part, text in zip(named, found, strict=True)), found
    assert "did you mean 'MatMul'?" in found[1]
    assert not list(tmp_path.iterdir())


def test_the_onnx_checker_has_its_say(tmp_path: Path) -> None:
    body = "(float[batch, n] x) => (float[batch, n] y) { y = Relu<slope = 1>(x) }"
    with pytest.raises(ConfigError, match="slope"):
        compile_engine(network(body), tmp_path, CPU, states={}, caps=CAPS | {"n": 1})


def test_what_onnx_runtime_has_no_kernel_for_fails_the_build(tmp_path: Path) -> None:
    body = "(bfloat16[batch, n] x) => (bfloat16[batch, n] y) { y = Sinh(x) }"
    with pytest.raises(ConfigError, match="Sinh"):
        compile_engine(network(body), tmp_path, CPU, states={}, caps=CAPS | {"n": 1})


@pytest.mark.parametrize(
    ("body", "shares"),
    [
        (tiny.ACCUMULATOR, True),
        (tiny.CACHE, True),
        (tiny.DECODE, True),
        (tiny.LATE_READER, False),
        ("(float[batch, n] s, float[batch, n] x) => (float[batch, n] y) "
         "{ v = Identity(s)\n a = Exp(v)\n y = Add(a, x) }", True),
        ("(float[batch, n] s, int64[batch] order) => (float[batch, n] y) { y = Gather(s, order) }", False),
        ("(float[batch, n] s, float[batch, n] x) => (float[batch, n] y, float[batch, n] z) "
         "{ y = Add(s, x)\n v = Identity(s)\n z = Exp(v) }", False),
        ("(float[batch, n] s, bool b) => (float[batch, n] y, float[batch, n] z) { y = Exp(s)\n"
         " z = If (b) <then_branch = g () => (float[batch, n] t) { t = Neg(s) }, "
         "else_branch = h () => (float[batch, n] e) { e = Abs(s) }> }", False),
    ],
    ids=["elementwise", "scatter", "token", "late", "view", "gather", "late view", "subgraph"],
)  # fmt: skip
def test_an_output_shares_memory_only_where_overwriting_is_safe(body: str, shares: bool) -> None:
    model = network(body)
    state = model.graph.inputs[0 if model.graph.inputs[0].name in ("s", "token") else -1].name
    output = next(value.name for value in model.graph.outputs if str(value.name).endswith(("_out", "next", "y")))
    assert (state in in_place(model).get(output, ())) == shares


def test_an_engine_of_another_backend_names_both(tmp_path: Path) -> None:
    folder = built(tmp_path / "engine", tiny.SCALE)
    for other in (OnnxRuntimeCuda(), TensorRT(module="tensorrt_rtx")):
        with pytest.raises(ConfigError) as error:
            open_engine(folder, other)
        assert "built for backend 'cpu'" in str(error.value)
        assert f"multistage-build backend={other.name}" in str(error.value)


def test_a_folder_that_is_missing_or_not_finished(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such folder.*multistage-build"):
        open_engine(tmp_path / "nowhere", CPU)
    (tmp_path / "model.onnx").write_bytes(b"half")
    with pytest.raises(ConfigError, match=r"no engine\.json.*multistage-build"):
        open_engine(tmp_path, CPU)


def test_an_engine_of_an_older_version_is_not_run(tmp_path: Path) -> None:
    folder = built(tmp_path / "engine", tiny.SCALE)
    record = folder / "engine.json"
    record.write_text(record.read_text().replace(f'"format": {manifest.FORMAT}', '"format": 1'))
    with pytest.raises(ConfigError, match=r"an engine of format 1, expected format .*multistage-build"):
        open_engine(folder, CPU)


def test_files_cut_short_changed_or_gone_are_all_named(tmp_path: Path) -> None:
    body = MATMUL.replace("999999", "300")
    folder = built(tmp_path / "engine", body, weights={"w": np.ones((4, 300), np.float32)})
    data = folder / "model.onnx.data"
    whole = data.read_bytes()

    data.write_bytes(whole[:-100])
    with pytest.raises(ConfigError, match=rf"model\.onnx\.data: got {len(whole) - 100} bytes, expected {len(whole)}"):
        open_engine(folder, CPU)
    data.write_bytes(b"\1" + whole[1:])
    with pytest.raises(ConfigError, match=r"model\.onnx\.data: got other content"):
        open_engine(folder, CPU)
    data.unlink()
    (folder / "model.onnx").unlink()
    with pytest.raises(ConfigError) as error:
        open_engine(folder, CPU)
    assert len(faults(error)) == 2
    assert all("no such file" in text for text in faults(error))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], r"engine\.json: got .*line"),
        (lambda text: text.replace('"caps"', '"cabs"'), "cabs"),
        (lambda text: json.dumps([json.loads(text)]), "expected"),
        (lambda text: text.replace('"digest"', '"sum"'), "digest"),
        (lambda text: "", "engine.json"),
        (
            lambda text: text.replace('"float32"', '"float16"'),
            r"engine\.json: spec: got other tensors.*multistage-build",
        ),
        (lambda text: text.replace('"n": 4', '"n": 1000000000000'), "other tensors"),
        (lambda text: text.replace('"batch",', "-3,"), "other tensors"),
        (lambda text: text.replace('"name": "x"', '"name": "z"'), "other tensors"),
    ],
    ids=["cut", "unknown key", "a list", "missing key", "empty", "dtype", "cap", "negative", "name"],
)
def test_a_corrupted_record_is_a_named_error(tmp_path: Path, change: object, message: str) -> None:
    folder = built(tmp_path / "engine", tiny.SCALE)
    record = folder / "engine.json"
    record.write_text(change(record.read_text()))  # type: ignore[operator]
    with pytest.raises(ConfigError, match=message):
        open_engine(folder, CPU)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TensorRT(module="torch_tensorrt"),
        lambda: TensorRT(compute_capability="sm_89"),
        lambda: type(CPU)(threads=-1),
        lambda: type(CPU)(spin="sometimes"),
    ],
    ids=["module", "compute capability", "threads", "spin"],
)
def test_backend_settings_out_of_range(make: object) -> None:
    with pytest.raises(ValueError):
        make()  # type: ignore[operator]


def test_cuda_without_its_package_says_what_to_install(tmp_path: Path) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("onnxruntime-gpu is installed")
    folder = built(tmp_path / "engine", tiny.SCALE, backend=OnnxRuntimeCuda())
    with pytest.raises(ConfigError, match=r"CUDAExecutionProvider.*multistage\[cuda\]"):
        open_engine(folder, OnnxRuntimeCuda())


@pytest.mark.parametrize(
    ("given", "engines", "settled"),
    [
        ("auto", ["."], "always"),
        ("auto", [], "always"),
        ("auto", ["asr/encoder", "asr", "llm"], "never"),
        ("in_call", ["a", "b"], "in_call"),
        ("always", ["a", "b"], "always"),
    ],
)
def test_threads_of_engines_that_share_the_cores_sleep_between_calls(
    given: Any, engines: list[str], settled: str, tmp_path: Path
) -> None:
    for name in engines:
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "engine.json").touch()
    assert shared(OnnxRuntimeCpu(spin=given), tmp_path) == OnnxRuntimeCpu(spin=settled)
    assert shared(OnnxRuntimeCuda(), tmp_path) == OnnxRuntimeCuda()
