"""What a GPU's memory, barriers and launches cost: `python -m tests.bench.gpu_probe`.

These numbers decide between one persistent kernel and many fused ones (docs/performance-gpu.md). Needs a GPU, numpy,
cuda-python and NVRTC; no torch.
"""

from __future__ import annotations

import ctypes
import json
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from framework.engines.cuda.kernels import program
from framework.engines.cuda.memory import DeviceMemory, call, runtime

SOURCE = r"""
typedef unsigned int u32;
__device__ __forceinline__ void grid_barrier(u32 *arrivals, u32 target) {
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrivals) : "memory");
        u32 seen;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrivals) : "memory");
        while ((int)(seen - target) < 0);
    }
    __syncthreads();
}
extern "C" __global__ void barriers(u32 *arrivals, u32 *phases, int count) {
    u32 phase = phases[blockIdx.x];
    for (int i = 0; i < count; i++) grid_barrier(arrivals, ++phase * gridDim.x);
    if (threadIdx.x == 0) phases[blockIdx.x] = phase;
}
// The same, with what blocks pass to each other: every block writes its part of 4 KiB and reads all of it.
extern "C" __global__ void exchanges(u32 *arrivals, u32 *phases, int count, float *vector) {
    u32 phase = phases[blockIdx.x];
    float sum = 0;
    for (int i = 0; i < count; i++) {
        float *half = vector + i % 2 * 1024;
        const int mine = blockIdx.x * 8 + threadIdx.x;
        if (threadIdx.x < 8 && mine < 1024) half[mine] = sum;
        grid_barrier(arrivals, ++phase * gridDim.x);
        sum += __ldcg((const float2 *)half + threadIdx.x).x;
    }
    if (threadIdx.x == 0) phases[blockIdx.x] = phase;
    vector[2048 + blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
extern "C" __global__ void nothing(float *value) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (threadIdx.x == 0 && blockIdx.x == 0) *value += 1;
}
// rows of 1024 fp16 times a vector; a warp has two rows, its weights on their way before the vector is waited for.
__device__ __forceinline__ float2 wide(u32 v) {
    float a, b;
    asm("{.reg .b16 l,h; mov.b32 {l,h},%2; cvt.f32.f16 %0,l; cvt.f32.f16 %1,h;}" : "=f"(a), "=f"(b) : "r"(v));
    return make_float2(a, b);
}
extern "C" __global__ void __launch_bounds__(256) matvec(const uint4 *matrix, const float *x, float *y, int rows) {
    const int lane = threadIdx.x % 32, row = (blockIdx.x * 8 + threadIdx.x / 32) * 2;
    if (row >= rows) return;
    uint4 w[8];
#pragma unroll
    for (int i = 0; i < 8; i++) w[i] = __ldg(matrix + row * 128 + i * 32 + lane);
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    float sum[2] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float4 *part = (const float4 *)(x + (i % 4) * 256 + lane * 8), a = __ldcg(part), b = __ldcg(part + 1);
        float2 t;
        t = wide(w[i].x), sum[i / 4] += t.x * a.x + t.y * a.y;
        t = wide(w[i].y), sum[i / 4] += t.x * a.z + t.y * a.w;
        t = wide(w[i].z), sum[i / 4] += t.x * b.x + t.y * b.y;
        t = wide(w[i].w), sum[i / 4] += t.x * b.z + t.y * b.w;
    }
    for (int r = 0; r < 2; r++) {
        for (int i = 16; i; i >>= 1) sum[r] += __shfl_xor_sync(~0u, sum[r], i);
        if (lane == 0) y[row + r] = sum[r];
    }
}
"""
REPEATS = 7
COLUMNS = 1024


class Probe:
    def __init__(self) -> None:
        self.memory = DeviceMemory(0)
        self.memory.use()
        cu = self.cu = program.driver()
        code = program.compile_source(SOURCE, {}, self.memory.compute_capability)
        self.module = program.call(cu.cuModuleLoadData, code)
        attribute = runtime().cudaDeviceAttr.cudaDevAttrMultiProcessorCount
        self.multiprocessors = int(call(runtime().cudaDeviceGetAttribute, attribute, 0))

    def launch(
        self, name: str, blocks: int, threads: int, *values: Any, cooperative: bool = False, early: bool = False
    ) -> Callable[[], None]:
        """A launch of a kernel; `early` lets it begin before the kernel before it has ended."""
        cu = self.cu
        function = program.call(cu.cuModuleGetFunction, self.module, name.encode())
        held = [ctypes.c_int(v) if isinstance(v, int) else ctypes.c_uint64(v.pointer) for v in values]
        pointers = np.array([ctypes.addressof(value) for value in held], np.uint64)
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.hStream = self.memory.stream
        attributes = []
        kinds = cu.CUlaunchAttributeID
        if cooperative:
            attribute = cu.CUlaunchAttribute()
            attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        if early:
            attribute = cu.CUlaunchAttribute()
            attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        config.attrs, config.numAttrs = attributes, len(attributes)

        def run(keep: object = held) -> None:
            program.call(cu.cuLaunchKernelEx, config, function, pointers.ctypes.data, 0)

        return run

    def seconds(self, run: Callable[[], None]) -> float:
        """Median device time of one run, after a warm-up."""
        return timed(self.memory, run, REPEATS)


def timed(memory: DeviceMemory, run: Callable[[], None], repeats: int) -> float:
    """Median device time of one run in seconds, after two runs of warm-up."""
    cudart = runtime()
    start, end = call(cudart.cudaEventCreate), call(cudart.cudaEventCreate)
    times = []
    for number in range(repeats + 2):
        call(cudart.cudaEventRecord, start, memory.stream)
        run()
        call(cudart.cudaEventRecord, end, memory.stream)
        call(cudart.cudaEventSynchronize, end)
        if number >= 2:
            times.append(call(cudart.cudaEventElapsedTime, start, end) / 1e3)
    return statistics.median(times)


def copy_bandwidth(memory: DeviceMemory, size: int = 2 << 30, repeats: int = REPEATS) -> float:
    """Bytes a second of a copy on the device, read and written both counted."""
    a, b = memory.zeros((size,), "uint8"), memory.zeros((size,), "uint8")
    return 2 * size / timed(memory, lambda: b.copy_from(a), repeats)


def main() -> None:
    probe = Probe()
    memory, blocks = probe.memory, probe.multiprocessors
    result: dict[str, Any] = {"multiprocessors": blocks, "copy_tb_s": copy_bandwidth(memory) / 1e12}

    arrivals, phases = memory.zeros((1,), "uint32"), memory.zeros((blocks,), "uint32")
    vector = memory.zeros((2048 + blocks * 512,), "float32")
    count = 2000
    for threads in (128, 512):
        run = probe.launch("barriers", blocks, threads, arrivals, phases, count, cooperative=True)
        result[f"barrier_us_{threads}_threads"] = probe.seconds(run) / count * 1e6
    run = probe.launch("exchanges", blocks, 512, arrivals, phases, count, vector, cooperative=True)
    result["barrier_and_exchange_us"] = probe.seconds(run) / count * 1e6

    value, nodes = memory.zeros((1,), "float32"), 1000
    for early in (False, True):
        for size in (1, blocks):
            one = probe.launch("nothing", size, 256, value, early=early)
            replay = memory.record(lambda one=one: [one() for _ in range(nodes)])
            name = f"node_us_{size}_blocks" + ("_early" if early else "")
            result[name] = probe.seconds(replay) / nodes * 1e6

    matrices = memory.zeros((1 << 30,), "uint8")  # 20 times the cache, so that every matrix comes from memory
    x = memory.zeros((4096,), "float32")
    for rows in (2048, 3072, 4096):
        size = rows * COLUMNS * 2
        places = [matrices.rows(i * size, (i + 1) * size) for i in range((1 << 30) // size)]
        for early in (False, True):
            launches = [probe.launch("matvec", rows // 16, 256, part, x, x, rows, early=early) for part in places]
            replay = memory.record(lambda launches=launches: [one() for one in launches])
            seconds = probe.seconds(replay) / len(places)
            name = f"matvec_{rows}" + ("_early" if early else "")
            result[f"{name}_us"], result[f"{name}_tb_s"] = seconds * 1e6, size / seconds / 1e12
    print(json.dumps({name: round(number, 3) for name, number in result.items()}, indent=1))


if __name__ == "__main__":
    main()
