"""What executes engines: the base that every backend implements, and the two doors to an engine.

Each backend has a folder beside this file with its settings, its compiler, its engines and the passes it runs:

    conf/backend/cpu.yaml ->  _target_: framework.engines.ort.backend.OnnxRuntimeCpu

Everything outside those folders asks the object and never for a name.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from framework.engines import footprint, manifest, verify
from framework.engines.base import Engine, EngineSpec
from framework.engines.footprint import MemoryRules
from framework.engines.manifest import Manifest
from framework.engines.memory import host_copy_rate
from framework.errors import ConfigError, Problem

if TYPE_CHECKING:
    import onnx_ir as ir

Pass = Callable[["ir.Model"], "ir.Model"]


@attrs.frozen(kw_only=True)
class Compiled:
    """What a backend made of a network.

    Attributes:
        files: names of the files it wrote into the engine folder.
        needs: what must be the same where the engine is opened, recorded among the engine's options.
    """

    files: Sequence[str]
    needs: Mapping[str, Any] = attrs.field(factory=dict)


class Backend(abc.ABC):
    """Settings of one backend, and everything the rest of the system may ask it.

    Attributes:
        dtypes: dtype of activations and states for each precision that it can build.
        memory: how much memory its engines take, measured in the bytes of their tensors.
        candidates: best tokens that a sampler looks at unless the build says otherwise; 0 is all of them.
        shares_host_memory: whether its engines lie in the memory that the process itself lives in.
    """

    dtypes: ClassVar[Mapping[str, str]]
    memory: ClassVar[MemoryRules] = MemoryRules()
    candidates: ClassVar[int] = 0
    shares_host_memory: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """As in `conf/backend` and in the record of an engine."""

    @property
    @abc.abstractmethod
    def packages(self) -> Sequence[str]:
        """Distributions whose versions an engine depends on."""

    @property
    @abc.abstractmethod
    def place(self) -> str:
        """Where its engines live, in words: `this machine`, `GPU 0`."""

    @abc.abstractmethod
    def free_memory(self) -> int:
        """Bytes that are free there. Raises ConfigError when the place does not exist."""

    def copy_rate(self) -> float:
        """Bytes a second, read and written, of a copy in the memory that its engines live in, measured now."""
        return host_copy_rate()

    @abc.abstractmethod
    def passes(self) -> Sequence[Pass]:
        """Its rewrites of a network, in order; none of them reads a weight."""

    def store_weights(self, model: ir.Model) -> ir.Model:
        """The network, after the passes, with its weights stored as `precision` in its metadata says. By default they
        stay as the network has them."""
        return model

    @abc.abstractmethod
    def compile(
        self, model: ir.Model, folder: Path, *, spec: EngineSpec, opt: Mapping[str, int], where: str
    ) -> Compiled:
        """Write the engine of a checked and rewritten network.

        Args:
            opt: value of each symbolic dimension to tune for.
            where: what the errors call the network.

        Raises:
            ConfigError: with everything that keeps the backend from compiling it.
        """

    @abc.abstractmethod
    def load(self, folder: Path, record: Manifest) -> Engine:
        """Load a checked engine of this backend. Raises ConfigError when it does not fit what is here."""

    def unable(self, record: Manifest) -> str | None:
        """Why this machine cannot run an engine that was built for the backend, in words; None when it can."""
        return None

    def among(self, engines: int) -> Backend:
        """The backend as it works where so many engines share the machine."""
        return self

    def on_device(self, device: int) -> Backend | None:
        """The backend on another GPU, or None where it uses none."""
        return None

    def with_threads(self, threads: int) -> Backend:
        """The backend with so many threads for each engine, if it computes on those of the CPU."""
        return self

    def activation_dtype(self, precision: str) -> str:
        """Dtype of activations and states (float32, float16, bfloat16). Raises ConfigError for a precision that it
        cannot build."""
        if precision not in self.dtypes:
            raise ConfigError(
                Problem(
                    where="build.precision",
                    got=f"{precision} on {self.name}",
                    expected=_either([*self.dtypes]),
                    hint="backend=cpu has every precision",
                )
            )
        return self.dtypes[precision]


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
    where = title(folder, backend)
    verify.check(model, where=where, states=states, caps=caps)
    for rewrite in (*backend.passes(), backend.store_weights):
        model = rewrite(model)
    verify.check(model, where=f"{where}, after the backend's passes", states=states, caps=caps)
    spec = verify.spec_of(model, states=states, caps=caps)
    largest = attrs.evolve(spec, caps={**caps, **(most or {})})
    weights = footprint.weights_of(model, backend.memory)
    activations = footprint.activations_of(model, largest, backend.memory)
    made = backend.compile(model, folder, spec=spec, opt={**caps, **(opt or {})}, where=where)
    record = Manifest(
        backend=backend.name,
        spec=spec,
        in_place=verify.in_place(model),
        checkpoint=checkpoint,
        options={**(options or {}), "backend": attrs.asdict(backend), **made.needs},  # type: ignore[arg-type]
        versions=manifest.versions("multistage", *backend.packages),
        files=manifest.describe(folder, made.files),
        weights=0 if backend.memory.as_filed else weights,
        activations=activations,
        alone="batch" in (most or {}),
    )
    manifest.write(folder, record)
    return manifest.read(folder)


def title(folder: Path, backend: Backend) -> str:
    """What errors call the engine that is being built in `folder`."""
    name = folder.name.removeprefix(".").removesuffix(".building")  # the folder it will be
    return f"{name} ({backend.name})"


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
    return backend.load(folder, record)


def shared(backend: Backend, folder: Path) -> Backend:
    """The backend as the engines in `folder` and below use it together."""
    return backend.among(sum(1 for _ in folder.rglob(manifest.FILE_NAME)))


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
