// In the place of machine.cu: a GPU of fibers on one CPU thread. Threads of all blocks take turns; one that waits yields.
// It shows what a kernel computes, not how threads would race, nor how fast they are.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>
using std::max;
using std::min;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned short Half;
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct ushort2 { unsigned short x, y; };
static float2 make_float2(float a, float b) { return {a, b}; }
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct Place { u32 x, y, z; };
struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(128 << 10);
    Place thread, block;
    bool done = false;
};
struct Meeting { int here = 0; u32 times = 0; };
struct Block {
    Meeting all, computing, warps[32];
    u32 exchanged[32][32][6];
    std::unique_ptr<char, decltype(&free)> memory{nullptr, free};
};
static Fiber *current;
static ucontext_t scheduler;
static Place grid;
static int block_threads;
static std::vector<Block> blocks;
#define threadIdx (current->thread)
#define blockIdx (current->block)
#define gridDim grid
static void yield() { swapcontext(&current->context, &scheduler); }
static Block &block() { return blocks[blockIdx.x + blockIdx.y * grid.x]; }
static int lane() { return threadIdx.x % 32; }
static int warp() { return threadIdx.x / 32; }
static void join(Meeting &meeting, int count) {
    const u32 times = meeting.times;
    if (++meeting.here == count) meeting.here = 0, meeting.times++;
    while (meeting.times == times) yield();
}
static void __syncthreads() { join(block().all, block_threads); }
static void __syncwarp() { join(block().warps[warp()], 32); }
template <class T> static T exchange(T v, int from) {
    auto &slots = block().exchanged[warp()];
    memcpy(slots[lane()], &v, 4), __syncwarp();
    memcpy(&v, slots[from], 4), __syncwarp();
    return v;
}
template <class T> static T __shfl_xor_sync(u32, T v, int mask) { return exchange(v, lane() ^ mask); }
template <class T> static T __shfl_up_sync(u32, T v, int by) { return exchange(v, lane() < by ? lane() : lane() - by); }
template <class T> static T __ldcg(const T *p) { return *p; }
template <class T> static T __ldg(const T *p) { return *p; }
static u32 atomicAdd(u32 *p, int v) { return (*p += v) - v; }
static u32 atomicOr(u32 *p, u32 v) { const u32 old = *p; return *p |= v, old; }
template <class To, class From> static To bits(From v) { To to; memcpy(&to, &v, sizeof to); return to; }
static u32 __float_as_uint(float v) { return bits<u32>(v); }
static float __uint_as_float(u32 v) { return bits<float>(v); }
static float __int_as_float(u32 v) { return bits<float>(v); }
#if BF16
static Half narrow(float v) { const u32 u = bits<u32>(v); return (u + 0x7fff + (u >> 16 & 1)) >> 16; }
static float wide(Half v) { return bits<float>((u32)v << 16); }
#else
static Half narrow(float v) { return bits<Half>((_Float16)v); }
static float wide(Half v) { return bits<_Float16>(v); }
#endif

constexpr int WARPS = 16, COMPUTE = WARPS * 32, THREADS = COMPUTE + 32;
#define SHARED_MEMORY(name) char *name = block().memory.get()
static void meet() { join(block().computing, COMPUTE); }
// A barrier of eight bytes: phase, arrivals that are missing, arrivals it takes.
struct Counted { u32 phase; unsigned short missing, takes; };
static void prepare(u64 *barrier, int arrivals) { *(Counted *)barrier = {0, (unsigned short)arrivals, (unsigned short)arrivals}; }
static void prepared() {}
static void wait(u64 *barrier, u32 parity) { while ((((Counted *)barrier)->phase & 1) == (parity & 1)) yield(); }
static void arrive(u64 *barrier) {
    auto &b = *(Counted *)barrier;
    if (!--b.missing) b.missing = b.takes, b.phase++;
}
static void fetch(u64 *barrier, void *to, const void *from, u32 bytes) { memcpy(to, from, bytes), arrive(barrier); }
static void arrive_and_wait(u32 *arrivals, u32 target) { for (++*arrivals; (int)(*arrivals - target) < 0;) yield(); }
static void mma(float *c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {  // m16n8k16
    auto &slots = block().exchanged[warp()];
    const u32 mine[6] = {a0, a1, a2, a3, b0, b1};
    memcpy(slots[lane()], mine, sizeof mine), __syncwarp();
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++) {
            const u32 a = slots[lane() / 4 * 4 + k % 8 / 2][k / 8 * 2 + i / 2];
            const u32 b = slots[(lane() % 4 * 2 + i % 2) * 4 + k % 8 / 2][4 + k / 8];
            c[i] += wide(k % 2 ? a >> 16 : a) * wide(k % 2 ? b >> 16 : b);
        }
    __syncwarp();
}
template <class Kernel> static void run(Kernel kernel, u32 x, u32 y, int threads, size_t shared) {
    static Kernel running;
    running = kernel, grid = {x, y, 1}, block_threads = threads;
    blocks = std::vector<Block>(x * y);
    for (auto &b : blocks) b.memory.reset((char *)aligned_alloc(128, (shared + 128) / 128 * 128)), memset(b.memory.get(), 0xff, shared);
    std::vector<Fiber> fibers(x * y * threads);
    for (size_t i = 0; i < fibers.size(); i++) {
        auto &f = fibers[i];
        const u32 b = i / threads;
        f.thread = {(u32)(i % threads), 0, 0}, f.block = {b % x, b / x, 0};
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = f.stack.size();
        makecontext(&f.context, +[] { for (running(); ; yield()) current->done = true; }, 0);
    }
    for (bool left = true; left;) {
        left = false;
        for (auto &f : fibers)
            if (!f.done) current = &f, left = true, swapcontext(&scheduler, &f.context);
    }
    blocks.clear();
}
