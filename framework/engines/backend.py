"""Backends: their settings, and the two doors to an engine, compiling one and opening one.

conf/backend/cpu.yaml ->  _target_: framework.engines.backend.OnnxRuntimeCpu
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
from attrs import validators as v

from framework.engines import footprint, manifest, verify
from framework.engines.base import Engine
from framework.engines.manifest import Manifest
from framework.engines.passes import for_backend
from framework.errors import ConfigError, Problem

if TYPE_CHECKING:
    import onnx_ir as ir


@attrs.frozen(kw_only=True)
class OnnxRuntimeCpu:
    """ONNX Runtime on the CPU.

    Attributes:
        threads: threads per engine; 0 is one per physical core.
        spin: what idle threads do. `always` waits busily between calls too, `in_call` only within a call, `never`
            sleeps; `auto` is `always` for the only engine of a deployment, and `never` where several take turns on
            the same cores (see `shared`).
        arena: keep freed activations for the next call instead of giving them back; faster, more memory.
    """

    name: ClassVar[str] = "cpu"
    threads: int = attrs.field(default=0, validator=v.ge(0))
    spin: Literal["auto", "always", "in_call", "never"] = attrs.field(
        default="auto", validator=v.in_(("auto", "always", "in_call", "never"))
    )
    arena: bool = True


@attrs.frozen(kw_only=True)
class OnnxRuntimeCuda:
    """ONNX Runtime on an NVIDIA GPU; states, inputs and outputs stay on it.

    Attributes:
        device: index of the GPU.
        cuda_graph: let calls be captured; needs every node of the network on the GPU.
        tf32: multiply fp32 with 10-bit mantissas; faster, but no longer the ids of fp32.
        memory_limit: bytes its arena may take; 0 is all.
    """

    name: ClassVar[str] = "cuda"
    device: int = attrs.field(default=0, validator=v.ge(0))
    cuda_graph: bool = True
    tf32: bool = False
    memory_limit: int = attrs.field(default=0, validator=v.ge(0))


@attrs.frozen(kw_only=True)
class TensorRT:
    """TensorRT, or TensorRT-RTX, which has the same Python interface.

    Attributes:
        module: package to use; also the name of the backend.
        device: index of the GPU.
        compute_capability: GPU to build for, e.g. "8.9", so that the building machine needs none (TensorRT-RTX);
            None builds for the GPU that is there.
        workspace: bytes of scratch memory the builder may plan with; 0 is the whole device.
        tf32: as in `OnnxRuntimeCuda`.
        optimization_level: 0 (quick build) to 5 (quick engine); None is the package's own.
    """

    module: Literal["tensorrt", "tensorrt_rtx"] = attrs.field(
        default="tensorrt", validator=v.in_(("tensorrt", "tensorrt_rtx"))
    )
    device: int = attrs.field(default=0, validator=v.ge(0))
    compute_capability: str | None = attrs.field(default=None, validator=v.optional(v.matches_re(r"\d+\.\d")))
    workspace: int = attrs.field(default=0, validator=v.ge(0))
    tf32: bool = False
    optimization_level: int | None = attrs.field(default=None, validator=v.optional(v.and_(v.ge(0), v.le(5))))

    @property
    def name(self) -> str:
        return self.module


Backend = OnnxRuntimeCpu | OnnxRuntimeCuda | TensorRT


def shared(backend: Backend, folder: Path) -> Backend:
    """The backend as the engines in `folder` and below use it together: settles `spin: auto` by their number."""
    if not isinstance(backend, OnnxRuntimeCpu) or backend.spin != "auto":
        return backend
    several = sum(1 for _ in folder.rglob(manifest.FILE_NAME)) > 1
    return attrs.evolve(backend, spin="never" if several else "always")


def compile_engine(
    model: ir.Model,
    folder: Path,
    backend: Backend,
    *,
    states: Mapping[str, str],
    caps: Mapping[str, int],
    opt: Mapping[str, int] | None = None,
    most: Mapping[str, int] | None = None,
    checkpoint: str = "",
    options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Make an engine of a network in `folder`, which exists (see `folder.building`).

    Args:
        model: backend-neutral network; the backend's own passes are run here. It may be changed.
        states: state input -> state output.
        caps: largest value of each symbolic dimension.
        opt: value of each dimension to tune for, where the backend asks; default the cap.
        most: of the largest call, for the record of its memory; default the cap.
        checkpoint: fingerprint of the weights, to be recorded.
        options: what the build was asked for, to be recorded.

    Returns:
        What was recorded in `engine.json`.

    Raises:
        ConfigError: the model is not valid, or the backend cannot compile it; lists every fault found.
    """
    name = folder.name.removeprefix(".").removesuffix(".building")  # the folder it will be
    where = f"{name} ({backend.name})"
    verify.check(model, where=where, states=states, caps=caps)
    for rewrite in for_backend(backend.name):
        model = rewrite(model)
    verify.check(model, where=f"{where}, after the backend's passes", states=states, caps=caps)
    spec = verify.spec_of(model, states=states, caps=caps)
    weights = footprint.weights_of(model, backend.name)
    activations = footprint.activations_of(model, attrs.evolve(spec, caps={**caps, **(most or {})}), backend.name)
    if isinstance(backend, TensorRT):
        from framework.engines.tensorrt import engine as tensorrt

        tuned = {**caps, **(opt or {})}
        files, built = tensorrt.compile_plan(model, folder, backend, spec=spec, opt=tuned, where=where)
    else:
        from framework.engines.ort import engine as onnxruntime

        files, built = onnxruntime.save_model(model, folder, backend, where=where), {}
    record = Manifest(
        backend=backend.name,
        spec=spec,
        in_place=verify.in_place(model),
        checkpoint=checkpoint,
        options={**(options or {}), "backend": attrs.asdict(backend), **built},
        versions=manifest.versions("multistage", *_PACKAGES[backend.name]),
        files=manifest.describe(folder, files),
        weights=0 if isinstance(backend, TensorRT) else weights,  # a plan is loaded as it is
        activations=activations,
        alone="batch" in (most or {}),
    )
    manifest.write(folder, record)
    return record


def open_engine(folder: Path, backend: Backend) -> Engine:
    """Load an engine.

    Raises:
        ConfigError: the folder is missing or not finished, its engine was built for another backend, TensorRT version
            or GPU, or a file of it is cut short or changed.
    """
    record = manifest.read(folder)
    if record.backend != backend.name:
        raise ConfigError(
            Problem(
                where=str(folder),
                got=f"an engine built for backend {record.backend!r}",
                expected=f"one for {backend.name!r}",
                hint=f"run with backend={record.backend}, or build again: multistage-build backend={backend.name}",
            )
        )
    manifest.check_files(folder, record)
    if isinstance(backend, TensorRT):
        from framework.engines.tensorrt.engine import TensorRTEngine

        return TensorRTEngine(folder, backend, record)
    from framework.engines.ort.engine import OnnxRuntimeEngine

    return OnnxRuntimeEngine(folder, backend, record)


_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "cpu": ("onnxruntime", "onnx", "onnx_ir"),
    "cuda": ("onnxruntime-gpu", "onnx", "onnx_ir"),
    "tensorrt": ("tensorrt", "onnx", "onnx_ir"),
    "tensorrt_rtx": ("tensorrt-rtx", "onnx", "onnx_ir"),
}
