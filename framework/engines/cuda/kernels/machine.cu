// What decoder.cu asks of the machine beyond C++: 16-bit floats, barriers, copies that a barrier counts, the tensor cores.
// The tests put another file in this one's place, to run the kernel on a CPU.
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned short Half;  // bits of a 16-bit float; NVRTC alone brings no header for them

#if BF16
#define MMA "bf16"
__device__ __forceinline__ Half narrow(float v) { Half h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(v)); return h; }
__device__ __forceinline__ float wide(Half v) { return __uint_as_float((u32)v << 16); }
#else
#define MMA "f16"
__device__ __forceinline__ Half narrow(float v) { Half h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v)); return h; }
__device__ __forceinline__ float wide(Half v) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v)); return f; }
#endif

constexpr int WARPS = 16;            // that compute; one more fills the ring
constexpr int COMPUTE = WARPS * 32;  // threads of those
constexpr int THREADS = COMPUTE + 32;
constexpr u64 TIME_LIMIT = 2000000000;  // ns a barrier waits before it traps: a hung kernel would hold the GPU for ever

#define SHARED_MEMORY(name) extern __shared__ __align__(128) char name[]

__device__ __forceinline__ u64 now() { u64 t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, %0;" ::"n"(COMPUTE) : "memory"); }
__device__ __forceinline__ void wait(u64 *barrier, u32 parity) {
    const u32 address = shared_address(barrier);
    u64 start = 0;
    while (true) {
        u32 done;
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                     : "=r"(done) : "r"(address), "r"(parity) : "memory");
        if (done) return;
        if (!start) start = now();
        else if (now() - start > TIME_LIMIT) __trap();
    }
}
__device__ __forceinline__ void prepare(u64 *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
__device__ __forceinline__ void prepared() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// A copy to shared memory, after which the barrier's phase is over.
__device__ __forceinline__ void fetch(u64 *barrier, void *to, const void *from, u32 bytes) {
    const u32 bar = shared_address(barrier);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
// One thread of each block: arrivals of all blocks are counted in a number that only grows.
__device__ __forceinline__ void arrive_and_wait(u32 *arrivals, u32 target) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrivals) : "memory");
    u64 start = 0;
    while (true) {
        u32 seen;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrivals) : "memory");
        if ((int)(seen - target) >= 0) return;
        if (!start) start = now();
        else if (now() - start > TIME_LIMIT) __trap();
    }
}
__device__ __forceinline__ void mma(float *c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." MMA "." MMA ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
