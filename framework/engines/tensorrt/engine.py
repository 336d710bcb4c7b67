"""Engines of TensorRT and TensorRT-RTX: one class, since both packages have the same Python interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from framework.engines.bound import Bindings, BufferCall, BufferEngine, BufferStates
from framework.engines.cuda.memory import DeviceMemory
from framework.engines.manifest import Manifest
from framework.engines.tensorrt.plan import PLAN, make_log, state_dims
from framework.errors import ConfigError


class TensorRTEngine(BufferEngine):
    captures = True

    def __init__(self, trt: Any, folder: Path, record: Manifest, memory: DeviceMemory) -> None:
        log = make_log(trt)
        self._runtime = trt.Runtime(log)
        self._engine = self._runtime.deserialize_cuda_engine((folder / PLAN).read_bytes())
        if self._engine is None:
            raise ConfigError(log.problems(str(folder / PLAN), "a plan that it can load"))
        # TensorRT lets outputs overlay only those inputs that it has made one itself (KV cache updates).
        aliases = {state.output: self._engine.get_aliased_input_tensor(state.output) for state in record.spec.states}
        super().__init__(record.spec, memory, {output: (source,) for output, source in aliases.items() if source})
        self._user_managed = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        # Calls run one after another on one stream, so all of them share one scratch memory.
        self._scratch = memory.zeros((self._engine.device_memory_size_v2,), "uint8")

    def new_states(self, batch: int, **dims: int) -> BufferStates:
        for name, size in state_dims(self.spec).items():
            if dims.get(name, size) != size:
                raise ValueError(f"dimension {name!r}: got {dims[name]}, but TensorRT built for exactly {size}")
        return super().new_states(batch, **dims)

    def close(self) -> None:
        super().close()
        self._engine = self._runtime = None

    def _call(self, bindings: Bindings) -> BufferCall:
        if self._engine is None:
            raise ValueError("the engine is closed")
        context = self._engine.create_execution_context(self._user_managed)
        return _TensorRTCall(self, context, bindings)


class _TensorRTCall(BufferCall):
    def __init__(self, engine: TensorRTEngine, context: Any, bindings: Bindings) -> None:
        super().__init__(engine.spec, bindings)
        self._keep = (engine._scratch, bindings)
        self._fed_back = bindings.fed_back()
        self._context = context
        self._memory: Any = engine.memory
        self._replay: Any = None
        context.set_device_memory(engine._scratch.pointer, engine._scratch.nbytes)
        for name, buffer in bindings.inputs.items():
            if not context.set_input_shape(name, buffer.shape):
                raise ValueError(f"input {name!r}: TensorRT refuses shape {buffer.shape}")
        for name, buffer in [*bindings.inputs.items(), *bindings.outputs.items()]:
            if not context.set_tensor_address(name, buffer.pointer):
                raise ValueError(f"tensor {name!r}: TensorRT refuses its address")

    def __call__(self) -> None:
        if self._replay is not None:
            self._replay()
        else:
            super().__call__()

    def _launch(self) -> None:
        if self._context is None:
            raise ValueError("the engine is closed")
        if not self._context.execute_async_v3(self._memory.stream):
            raise RuntimeError("TensorRT could not enqueue the call; its log says why")

    def close(self) -> None:
        self._context = self._replay = None

    def capture(self) -> None:
        # The first run allocates, which cannot be captured; what it did to states and fed-back inputs is undone.
        saved = [(buffer, buffer.read().copy()) for buffer in self._fed_back]
        super().__call__()
        for buffer, value in saved:
            buffer.write(value)
        self._replay = self._memory.record(super().__call__)
