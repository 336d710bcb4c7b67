"""ONNX Runtime on the CPU: its settings and its passes.

conf/backend/cpu.yaml ->  _target_: framework.engines.ort.backend.OnnxRuntimeCpu
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import attrs
from attrs import validators as v

from framework.engines.backend import Backend, Compiled, Pass
from framework.engines.base import Engine, EngineSpec
from framework.engines.footprint import MemoryRules
from framework.engines.manifest import Manifest
from framework.engines.memory import HostMemory, free_host_memory

if TYPE_CHECKING:
    import onnx_ir as ir


@attrs.frozen(kw_only=True)
class OnnxRuntimeCpu(Backend):
    """ONNX Runtime on the CPU. It computes in fp32 whatever the weights are stored as.

    Attributes:
        threads: threads per engine; 0 is one per physical core.
        spin: what idle threads do. `always` waits busily between calls too, `in_call` only within a call, `never`
            sleeps; `auto` is `always` for the only engine of a deployment, and `never` where several take turns on
            the same cores.
        arena: keep freed activations for the next call instead of giving them back; faster, more memory.
    """

    name: ClassVar[str] = "cpu"
    packages: ClassVar[Sequence[str]] = ("onnxruntime", "onnx", "onnx_ir")
    place: ClassVar[str] = "this machine"
    dtypes: ClassVar[Mapping[str, str]] = dict.fromkeys(("fp32", "fp16", "bf16", "int8", "int4"), "float32")
    memory: ClassVar[MemoryRules] = MemoryRules(
        engine=30_000_000,
        # It widens 16-bit weights to fp32, and lays the result out anew before it lets go of it.
        widened=4,
        # Its arena grows in powers of two and has gaps, and from the second call on a plan of it lies beside. Measured:
        # 1.5 to 2.7 times what is alive; of a vocoder, whose convolutions have work areas, up to 6 in short calls.
        arena=2.5,
        stores=frozenset({"fp16", "bf16", "int8", "int4"}),
    )
    shares_host_memory: ClassVar[bool] = True

    threads: int = attrs.field(default=0, validator=v.ge(0))
    spin: Literal["auto", "always", "in_call", "never"] = attrs.field(
        default="auto", validator=v.in_(("auto", "always", "in_call", "never"))
    )
    arena: bool = True

    def free_memory(self) -> int:
        return free_host_memory()

    def passes(self) -> Sequence[Pass]:
        from framework.engines.passes.attention import fuse_attention
        from framework.engines.passes.conv import widen_convolutions
        from framework.engines.passes.flash import tile_attention
        from framework.engines.passes.moe import group_experts
        from framework.engines.passes.norm import fuse_skip_norm
        from framework.engines.passes.pack import pack_siblings

        return (group_experts, widen_convolutions, pack_siblings, fuse_attention, tile_attention, fuse_skip_norm)

    def store_weights(self, model: ir.Model) -> ir.Model:
        from framework.engines.passes.weights import store_weights

        return store_weights(model)

    def compile(
        self, model: ir.Model, folder: Path, *, spec: EngineSpec, opt: Mapping[str, int], where: str
    ) -> Compiled:
        """Write the network, and see that ONNX Runtime has a kernel for every node."""
        from framework.engines.ort import engine

        files = engine.save(model, folder)
        engine.check_kernels(folder, where)
        return Compiled(files=files)

    def load(self, folder: Path, record: Manifest) -> Engine:
        from framework.engines.ort import engine

        ort = engine.onnxruntime(self.name)
        options = engine.session_options(ort)
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = self.arena
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(self.spin != "never")))
        # Attention far back in a prompt is a sum of denormal numbers, which are a hundred times slower than zeros.
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
        options.add_session_config_entry("session.force_spinning_stop", str(int(self.spin == "in_call")))
        session = engine.session(ort, folder, options, ["CPUExecutionProvider"], str(folder))
        return engine.OnnxRuntimeEngine(session, record, HostMemory())

    def among(self, engines: int) -> OnnxRuntimeCpu:
        if self.spin != "auto":
            return self
        return attrs.evolve(self, spin="never" if engines > 1 else "always")

    def with_threads(self, threads: int) -> OnnxRuntimeCpu:
        return attrs.evolve(self, threads=threads)
