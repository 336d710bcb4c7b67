// A decoder stack of a few rows as one persistent kernel: layers, head, choosing, and the chosen row fed back, for all
// steps of a call. One block a multiprocessor, all of them resident (cooperative launch); blocks meet at grid barriers.
//
// Weights arrive through a ring in shared memory, filled by a warp of its own: they do not depend on what is computed,
// so they keep coming while blocks wait for each other. A tile is 8 rows of a matrix; the 16 other warps share its
// columns. Products run on the tensor cores with activations split into two 16-bit halves, high and low, so that a
// 16-bit matrix times an fp32 vector keeps its precision (fp16: 22 bits of the vector; bf16: 16), and sums are fp32.
//
// A column (a row of the batch, or one of its prompt tokens) never meets another, and every sum has an order that only
// the column's own position decides: a row's codes do not depend on its neighbours.
//
// Defined by the compiler's options: LAYERS WIDTH HEADS KV_HEADS HEAD_DIM MLP VOCAB PROMPT STEPS CAPACITY CHUNK QK_NORM
// EPS BF16 ONE_HEAD (every step has the same head and table) SHAPED (scores have history, bias and marks) SLOTS.
// Compiled at load by NVRTC, so nothing is included but what NVRTC brings.
#define NOTHING __int_as_float(0xff800000)  // minus infinity
constexpr int SLOT_K = 1024;           // columns of a tile in one slot of the ring
constexpr int SLOT_BYTES = 8 * SLOT_K * 2;
constexpr int BATCH = 8;               // tiles whose sums wait together
constexpr int COLUMNS = 8;             // columns a product has
constexpr int GROUP = HEADS / KV_HEADS;
constexpr int LANE_DIMS = HEAD_DIM / 32;
constexpr int POSITIONS = CHUNK / WARPS;  // of a chunk, a warp
constexpr int CHUNKS = (CAPACITY + CHUNK - 1) / CHUNK;
__host__ __device__ constexpr int padded(int n) { return (n + 511) / 512 * 512; }
constexpr int Q = HEADS * HEAD_DIM, KV = KV_HEADS * HEAD_DIM, QKV = Q + 2 * KV;
constexpr int WIDTH_P = padded(WIDTH), Q_P = padded(Q), MLP_P = padded(MLP);
constexpr int BINS = 2048;             // of the histogram that finds the best scores
constexpr int ENOUGH = 512;            // candidates that are few enough to be ranked by counting
static_assert(HEAD_DIM % 32 == 0 && HEADS % KV_HEADS == 0 && CHUNK % WARPS == 0 && VOCAB <= 4096, "shape");

__host__ __device__ constexpr int tiles(int rows) { return (rows + 7) / 8; }
__host__ __device__ constexpr i64 matrix_bytes(int rows, int columns_p) { return (i64)tiles(rows) * 8 * columns_p * 2; }

struct Arguments {
    const char *qkv, *out, *gate_up, *down, *head;         // packed tiles, layer after layer; heads step after step
    const Half *table;                                      // [steps, VOCAB, WIDTH] what a code is fed back as
    const float *norm1, *norm2, *q_norm, *k_norm, *norm;    // [LAYERS, WIDTH_P] twice, [LAYERS, HEAD_DIM] twice, [WIDTH_P]
    const float *cosine, *sine;                             // [CAPACITY, HEAD_DIM / 2]
    const float *input;                                     // [rows, PROMPT, WIDTH_P]
    Half *const *keys, *const *values;                      // [LAYERS] of [rows, KV_HEADS, CAPACITY, HEAD_DIM]
    float *x, *qkv_out, *mixed, *peaks, *mid, *logits;      // scratch
    const i64 *past;                                        // [rows] cache entries before this call
    const float *noise;                                     // [rows, noise_stride]; step s takes entry s
    const float *temperature, *top_p, *min_p;               // [rows]
    const i64 *top_k;                                       // [rows]
    const float *penalty, *bias;                            // [rows], [rows, VOCAB]
    i64 *history;                                           // [rows, history_stride]
    const i64 *spoken;                                      // [rows] entries of the history
    const unsigned char *never;                             // [VOCAB] 1 where a code is none
    i64 *codes;                                             // [rows, codes_stride]
    float *next;                                            // rows of next_stride: what the code is fed back as
    float *hidden;                                          // rows of next_stride: after the final norm; may be null
    u32 *barrier, *phases;                                  // [1], [blocks]: arrivals, barriers passed; both only grow
    int rows, noise_stride, codes_stride, next_stride, history_stride, candidates, stop, least;
};

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int i = 16; i; i >>= 1) v += __shfl_xor_sync(~0u, v, i);
    return v;
}
__device__ __forceinline__ float root(float sum, int n) { return 1.0f / sqrtf(sum / n + EPS); }

// ---- ring ------------------------------------------------------------------------------------------------------------
struct Ring {
    char *slots;
    u64 *full, *empty;  // [SLOTS] each
    int at;
    u32 parity;
    __device__ void step() { if (++at == SLOTS) { at = 0; parity ^= 1; } }
};
// All of a block's tiles of one matrix into the ring.
__device__ void stream(Ring &ring, const char *matrix, int tile_count, int columns_p) {
    const int each = (tile_count + gridDim.x - 1) / gridDim.x, first = blockIdx.x * each;
    const int last = min(first + each, tile_count);
    for (int tile = first; tile < last; tile++)
        for (int k = 0; k < columns_p; k += SLOT_K) {
            const u32 bytes = 16 * min(SLOT_K, columns_p - k);
            const char *source = matrix + (i64)tile * 16 * columns_p + 16 * k;
            wait(ring.empty + ring.at, ring.parity ^ 1);
            fetch(ring.full + ring.at, ring.slots + ring.at * SLOT_BYTES, source, bytes);
            ring.step();
        }
}
__device__ void fill(Ring &ring, const Arguments &a) {
    for (int step = 0; step < STEPS; step++) {
        for (int layer = 0; layer < LAYERS; layer++) {
            stream(ring, a.qkv + layer * matrix_bytes(QKV, WIDTH_P), tiles(QKV), WIDTH_P);
            stream(ring, a.out + layer * matrix_bytes(WIDTH, Q_P), tiles(WIDTH), Q_P);
            stream(ring, a.gate_up + layer * matrix_bytes(2 * MLP, WIDTH_P), tiles(2 * MLP), WIDTH_P);
            stream(ring, a.down + layer * matrix_bytes(WIDTH, MLP_P), tiles(WIDTH), MLP_P);
        }
        stream(ring, a.head + (ONE_HEAD ? 0 : step) * matrix_bytes(VOCAB, WIDTH_P), tiles(VOCAB), WIDTH_P);
    }
}

// ---- products --------------------------------------------------------------------------------------------------------
// A warp's share of a vector: lane 4 * column + t holds 8 neighbours of each group of 32, as high and low halves.
template <int K> struct Share { u32 high[K / 512 * 4], low[K / 512 * 4]; };

template <int K> __device__ __forceinline__ int place(int group, int warp, int lane) {  // first of the 8 neighbours
    const int slot = group / 2, wide_slot = (K - slot * SLOT_K) >= SLOT_K;
    return slot * SLOT_K + (wide_slot ? warp * 2 + group % 2 : warp) * 32 + lane % 4 * 8;
}
__device__ __forceinline__ void split(float a, float b, u32 &high, u32 &low) {
    const Half ha = narrow(a), hb = narrow(b);
    high = ha | (u32)hb << 16, low = narrow(a - wide(ha)) | (u32)narrow(b - wide(hb)) << 16;
}
template <int K> __device__ __forceinline__ void put(Share<K> &share, int group, const float *v) {
#pragma unroll
    for (int i = 0; i < 4; i++) split(v[2 * i], v[2 * i + 1], share.high[group * 4 + i], share.low[group * 4 + i]);
}
__device__ __forceinline__ void read8(float *v, const float *p) {
    const float4 a = __ldcg((const float4 *)p), b = __ldcg((const float4 *)p + 1);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
// Columns of x [columns, K], normalised.
template <int K> __device__ void load_normal(Share<K> &share, const float *x, const float *weight, int columns, int width,
                                             float *squares, float *hidden, int hidden_stride, int prompt) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = lane / 4;
    float v[K / 512][8], w[K / 512][8], sum = 0;
#pragma unroll
    for (int g = 0; g < K / 512; g++) {
        const int k = place<K>(g, warp, lane);
        const float4 a = __ldg((const float4 *)(weight + k)), b = __ldg((const float4 *)(weight + k) + 1);
        w[g][0] = a.x, w[g][1] = a.y, w[g][2] = a.z, w[g][3] = a.w, w[g][4] = b.x, w[g][5] = b.y, w[g][6] = b.z, w[g][7] = b.w;
        if (column < columns) read8(v[g], x + (i64)column * K + k);
        else for (int i = 0; i < 8; i++) v[g][i] = 0;
    }
#pragma unroll
    for (int g = 0; g < K / 512; g++)
#pragma unroll
        for (int i = 0; i < 8; i++) sum += v[g][i] * v[g][i];
    sum += __shfl_xor_sync(~0u, sum, 1), sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0) squares[warp * COLUMNS + column] = sum;
    meet();
    sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) sum += squares[i * COLUMNS + column];
    const float scale = root(sum, width);
#pragma unroll
    for (int g = 0; g < K / 512; g++) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[g][i] *= scale * w[g][i];
        put<K>(share, g, v[g]);
        if (hidden && column < columns && column % prompt == prompt - 1)
            for (int i = 0; i < 8; i++) hidden[(i64)(column / prompt) * hidden_stride + place<K>(g, warp, lane) + i] = v[g][i];
    }
}
template <int K, class Read> __device__ __forceinline__ void load(Share<K> &share, int columns, Read read) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = lane / 4;
    float v[K / 512][8];
#pragma unroll
    for (int g = 0; g < K / 512; g++) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[g][i] = 0;
        if (column < columns) read(v[g], column, place<K>(g, warp, lane));
    }
#pragma unroll
    for (int g = 0; g < K / 512; g++) put<K>(share, g, v[g]);
}
// Rows of a matrix times the columns of a share; `done(row, column, value)` gets each once, a warp's threads together.
template <int K, class Done> __device__ __forceinline__ void product(Ring &ring, const Share<K> &share, int rows, float *sums, Done done) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int tile_count = tiles(rows), each = (tile_count + gridDim.x - 1) / gridDim.x, first = blockIdx.x * each;
    const int last = min(first + each, tile_count);
    for (int from = first; from < last; from += BATCH) {
        const int count = min(BATCH, last - from);
        for (int j = 0; j < count; j++) {
            float c[2][4] = {};
#pragma unroll
            for (int slot = 0; slot < (K + SLOT_K - 1) / SLOT_K; slot++) {
                const int groups = (K - slot * SLOT_K) >= SLOT_K ? 2 : 1;
                wait(ring.full + ring.at, ring.parity);
                const uint4 *w = (const uint4 *)(ring.slots + ring.at * SLOT_BYTES) + warp * groups * 32 + lane;
                uint4 b[2];
#pragma unroll
                for (int i = 0; i < groups; i++) b[i] = w[i * 32];
                __syncwarp();
                if (lane == 0) arrive(ring.empty + ring.at);
                ring.step();
#pragma unroll
                for (int i = 0; i < groups; i++) {
                    const u32 *h = share.high + (slot * 2 + i) * 4, *l = share.low + (slot * 2 + i) * 4;
                    mma(c[0], h[0], l[0], h[1], l[1], b[i].x, b[i].y);
                    mma(c[1], h[2], l[2], h[3], l[3], b[i].z, b[i].w);
                }
            }
            const float2 pair = {(c[0][0] + c[0][2]) + (c[1][0] + c[1][2]), (c[0][1] + c[0][3]) + (c[1][1] + c[1][3])};
            *(float2 *)(sums + (warp * BATCH + j) * 64 + lane * 2) = pair;  // column * 8 + row, as lane = column * 4 + row / 2
        }
        meet();
        for (int e = threadIdx.x; e < count * 64; e += COMPUTE) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < WARPS; i++) sum += sums[i * BATCH * 64 + e];
            done((from + e / 64) * 8 + e % 8, e / 8 % 8, sum);
        }
        if (from + BATCH < last) meet();
    }
}

// ---- attention -------------------------------------------------------------------------------------------------------
struct Dims { float v[LANE_DIMS]; };
__device__ __forceinline__ Dims read_cache(const Half *p) {
    Dims d;
    if constexpr (LANE_DIMS == 4) {
        const uint2 raw = __ldcg((const uint2 *)p);
        const Half *h = (const Half *)&raw;
        for (int i = 0; i < 4; i++) d.v[i] = wide(h[i]);
    } else {
        for (int i = 0; i < LANE_DIMS; i++) d.v[i] = wide(__ldcg(p + i));
    }
    return d;
}
// One chunk of the context, of one row and one key head: a block's work. `shared` has room for what `attend_bytes` says.
__device__ void attend(const Arguments &a, int layer, int row, int head, int chunk, i64 past, int tokens, float *shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *queries = shared, *peak = queries + PROMPT * GROUP * HEAD_DIM, *mass = peak + WARPS * GROUP, *sums = mass + WARPS * GROUP;
    Half *keys = a.keys[layer] + ((i64)row * KV_HEADS + head) * CAPACITY * HEAD_DIM;
    Half *values = a.values[layer] + ((i64)row * KV_HEADS + head) * CAPACITY * HEAD_DIM;
    for (int item = warp; item < tokens * (GROUP + 2); item += WARPS) {
        const int token = item / (GROUP + 2), which = item % (GROUP + 2);
        const i64 at = past + token;
        const int start = which < GROUP ? (head * GROUP + which) * HEAD_DIM : Q + (which - GROUP) * KV + head * HEAD_DIM;
        const float *source = a.qkv_out + (i64)(row * tokens + token) * QKV + start + lane * LANE_DIMS;
        Dims d;
        float sum = 0;
        for (int i = 0; i < LANE_DIMS; i++) d.v[i] = __ldcg(source + i), sum += d.v[i] * d.v[i];
        if (which <= GROUP) {
            if (QK_NORM) {
                const float scale = root(warp_sum(sum), HEAD_DIM);
                const float *weight = (which < GROUP ? a.q_norm : a.k_norm) + layer * HEAD_DIM + lane * LANE_DIMS;
                for (int i = 0; i < LANE_DIMS; i++) d.v[i] *= scale * __ldg(weight + i);
            }
            for (int i = 0; i < LANE_DIMS; i++) {  // the other half of the head is 16 lanes away
                const float other = __shfl_xor_sync(~0u, d.v[i], 16);
                const i64 entry = at * (HEAD_DIM / 2) + lane % 16 * LANE_DIMS + i;
                const float c = __ldg(a.cosine + entry), s = __ldg(a.sine + entry);
                d.v[i] = lane < 16 ? d.v[i] * c - other * s : d.v[i] * c + other * s;
            }
        }
        for (int i = 0; i < LANE_DIMS; i++) {
            const int dim = lane * LANE_DIMS + i;
            if (which < GROUP) queries[(token * GROUP + which) * HEAD_DIM + dim] = d.v[i] * (1.0f / sqrtf((float)HEAD_DIM));
            else if (at / CHUNK == chunk) (which == GROUP ? keys : values)[at * HEAD_DIM + dim] = narrow(d.v[i]);
        }
    }
    meet();
    for (int token = 0; token < tokens; token++) {
        const i64 length = past + token + 1;
        Dims k[POSITIONS], v[POSITIONS];
#pragma unroll
        for (int i = 0; i < POSITIONS; i++) {
            const i64 at = (i64)chunk * CHUNK + i * WARPS + warp;
            if (at < length) {
                k[i] = read_cache(keys + at * HEAD_DIM + lane * LANE_DIMS);
                v[i] = read_cache(values + at * HEAD_DIM + lane * LANE_DIMS);
            }
        }
        for (int g = 0; g < GROUP; g++) {
            const float *q = queries + (token * GROUP + g) * HEAD_DIM + lane * LANE_DIMS;
            float score[POSITIONS], top = NOTHING, total = 0, out[LANE_DIMS] = {};
#pragma unroll
            for (int i = 0; i < POSITIONS; i++) {
                score[i] = NOTHING;
                if ((i64)chunk * CHUNK + i * WARPS + warp < length) {
                    float sum = 0;
                    for (int d = 0; d < LANE_DIMS; d++) sum += q[d] * k[i].v[d];
                    score[i] = warp_sum(sum);
                }
                top = fmaxf(top, score[i]);
            }
#pragma unroll
            for (int i = 0; i < POSITIONS; i++)
                if (score[i] > NOTHING) {
                    const float e = expf(score[i] - top);
                    total += e;
                    for (int d = 0; d < LANE_DIMS; d++) out[d] += e * v[i].v[d];
                }
            if (lane == 0) peak[warp * GROUP + g] = top, mass[warp * GROUP + g] = total;
            for (int d = 0; d < LANE_DIMS; d++) sums[(warp * GROUP + g) * HEAD_DIM + lane * LANE_DIMS + d] = out[d];
        }
        meet();
        const int column = row * tokens + token;
        for (int e = threadIdx.x; e < GROUP * HEAD_DIM; e += COMPUTE) {
            const int g = e / HEAD_DIM, dim = e % HEAD_DIM, q_head = head * GROUP + g;
            float top = NOTHING, total = 0, sum = 0;
            for (int w = 0; w < WARPS; w++) top = fmaxf(top, peak[w * GROUP + g]);
            if (top > NOTHING)
                for (int w = 0; w < WARPS; w++) {
                    const float e = expf(peak[w * GROUP + g] - top);
                    total += e * mass[w * GROUP + g];
                    sum += e * sums[(w * GROUP + g) * HEAD_DIM + dim];
                }
            float *to = a.mixed + ((i64)chunk * COLUMNS + column) * Q_P + q_head * HEAD_DIM + dim;
            if (CHUNKS == 1) *to = sum / total;
            else {
                *to = sum;
                if (dim == 0) *(float2 *)(a.peaks + (((i64)chunk * COLUMNS + column) * HEADS + q_head) * 2) = make_float2(top, total);
            }
        }
        meet();
    }
}

// ---- choosing --------------------------------------------------------------------------------------------------------
__device__ __forceinline__ u32 ordered(float v) {  // unsigned integers in the order of the floats
    const u32 bits = __float_as_uint(v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float unordered(u32 v) { return __uint_as_float(v & 0x80000000u ? v & 0x7fffffffu : ~v); }

struct Choosing {  // in shared memory
    u64 found[VOCAB], sorted[VOCAB];
    u32 keys[VOCAB], bins[BINS], seen[(VOCAB + 31) / 32];
    u32 warps[WARPS], threshold, above, inside, count;
    int token;
};
// The code of one row by nn.Sampler's rule: best first, top-k, top-p and min-p each keep a prefix, one uniform number
// draws from what is kept. Sums run in order.
__device__ int choose(const Arguments &a, Choosing &s, const float *logits, int row, int step) {
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    const float temperature = a.temperature[row];
    const i64 spoken = SHAPED ? a.spoken[row] : 0;
    if (SHAPED) {
        for (int i = t; i < (VOCAB + 31) / 32; i += COMPUTE) s.seen[i] = 0;
        meet();
        for (i64 i = t; i < spoken; i += COMPUTE) {
            const i64 code = a.history[(i64)row * a.history_stride + i];
            atomicOr(s.seen + code / 32, 1u << code % 32);
        }
    }
    if (t == 0) s.count = 0;
    meet();
    for (int i = t; i < VOCAB; i += COMPUTE) {
        float v = __ldcg(logits + i);
        if (SHAPED) {
            if (a.never[i] || (i == a.stop && spoken < a.least)) v = -1e30f;
            if (s.seen[i / 32] >> i % 32 & 1) v = v > 0 ? v / a.penalty[row] : v * a.penalty[row];
            v += a.bias[(i64)row * VOCAB + i];
        }
        s.keys[i] = ordered(v + 0.0f);  // -0 and 0 are equal
    }
    const i64 most = a.top_k[row] ? a.top_k[row] : a.candidates;
    const int wanted = temperature <= 0 ? 1 : (int)min(min(most, (i64)a.candidates), (i64)VOCAB);
    // The least key that at least `wanted` reach, by histograms of 11 bits, until few enough reach it.
    u32 prefix = 0, mask = 0;
    int missing = wanted, better = 0;
    for (int shift = 21;; shift = shift == 21 ? 10 : 0) {
        const u32 digit = shift ? BINS - 1 : 1023;
        for (int i = t; i < BINS; i += COMPUTE) s.bins[i] = 0;
        meet();
        for (int i = t; i < VOCAB; i += COMPUTE)
            if ((s.keys[i] & mask) == prefix) atomicAdd(s.bins + (s.keys[i] >> shift & digit), 1);
        meet();
        u32 mine = 0, running;
        for (int i = 0; i < BINS / COMPUTE; i++) mine += s.bins[BINS - 1 - (t * (BINS / COMPUTE) + i)];
        running = mine;
        for (int i = 1; i < 32; i *= 2) {
            const u32 other = __shfl_up_sync(~0u, running, i);
            if (lane >= i) running += other;
        }
        if (lane == 31) s.warps[warp] = running;
        meet();
        for (int i = 0; i < warp; i++) running += s.warps[i];
        if (running >= missing && running - mine < missing) {
            u32 before = running - mine;
            for (int i = 0; i < BINS / COMPUTE; i++) {
                const int bin = BINS - 1 - (t * (BINS / COMPUTE) + i);
                if (before + s.bins[bin] >= missing) {
                    s.threshold = bin, s.above = before, s.inside = s.bins[bin];
                    break;
                }
                before += s.bins[bin];
            }
        }
        meet();
        prefix |= s.threshold << shift, mask |= digit << shift;
        better += s.above, missing -= s.above;
        if (shift == 0 || better + s.inside <= max(ENOUGH, wanted)) break;
        meet();
    }
    for (int i = t; i < VOCAB; i += COMPUTE)
        if (s.keys[i] >= prefix) s.found[atomicAdd(&s.count, 1)] = (u64)s.keys[i] << 32 | (u32)~i;
    meet();
    const int count = s.count;
    for (int i = t; i < count; i += COMPUTE) {
        const u64 key = s.found[i];
        int rank = 0;
        for (int j = 0; j < count; j++) rank += s.found[j] > key;
        s.sorted[rank] = key;
    }
    meet();
    if (temperature <= 0) return (int)~(u32)s.sorted[0];
    float *sums = (float *)s.found;  // of the weights, in order
    const float best = unordered(s.sorted[0] >> 32);
    for (int i = t; i < wanted; i += COMPUTE) sums[i] = expf((unordered(s.sorted[i] >> 32) - best) / temperature);
    meet();
    if (t == 0) {
        const float least = a.min_p[row], top_p = a.top_p[row];
        float total = 0;
        for (int i = 0; i < wanted; i++) total += sums[i];
        const float within = total * top_p;
        float before = 0;
        int kept = 0;
        for (; kept < wanted && before < within && sums[kept] >= least; kept++) before = sums[kept] += before;
        const float target = a.noise[(i64)row * a.noise_stride + step] * before;
        int passed = 0;
        while (passed < kept && sums[passed] <= target) passed++;
        s.token = (int)~(u32)s.sorted[max(0, min(passed, kept - 1))];
    }
    meet();
    return s.token;
}

// ---- the kernel ------------------------------------------------------------------------------------------------------
__device__ __forceinline__ void grid_barrier(const Arguments &a, u32 &phase) {
    meet();
    phase++;
    if (threadIdx.x == 0) arrive_and_wait(a.barrier, phase * gridDim.x);
    meet();
}

constexpr int most(int a, int b) { return a > b ? a : b; }
constexpr int SUM_BYTES = WARPS * BATCH * 64 * 4;
constexpr int ATTEND_BYTES = (PROMPT * GROUP * HEAD_DIM + WARPS * GROUP * (2 + HEAD_DIM)) * 4;
constexpr int WORK_BYTES = (most(most(SUM_BYTES, ATTEND_BYTES), (int)sizeof(Choosing)) + 127) / 128 * 128;
constexpr int SHARED_BYTES = SLOTS * SLOT_BYTES + WORK_BYTES + WARPS * COLUMNS * 4 + 2 * SLOTS * 8;
__device__ int shared_bytes = SHARED_BYTES;  // read by whoever launches

extern "C" __global__ void __launch_bounds__(THREADS, 1) decode(const __grid_constant__ Arguments a) {
    SHARED_MEMORY(memory);
    float *work = (float *)(memory + SLOTS * SLOT_BYTES), *squares = (float *)((char *)work + WORK_BYTES);
    u64 *full = (u64 *)(squares + WARPS * COLUMNS);
    Ring ring = {memory, full, full + SLOTS, 0, 0};
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) prepare(ring.full + i, 1), prepare(ring.empty + i, WARPS);
        prepared();
    }
    __syncthreads();
    if (threadIdx.x >= COMPUTE) {
        if (threadIdx.x == COMPUTE) fill(ring, a);
        return;
    }
    u32 phase = a.phases[blockIdx.x];
    for (int step = 0; step < STEPS; step++) {
        const int tokens = step ? 1 : PROMPT, columns = a.rows * tokens, done = step ? PROMPT + step - 1 : 0;
        const float *given = step ? a.next : a.input;
        for (int layer = 0; layer < LAYERS; layer++) {
            const float *before = layer ? a.x : given;
            {
                Share<WIDTH_P> share;
                load_normal(share, before, a.norm1 + layer * WIDTH_P, columns, WIDTH, squares, nullptr, 0, 1);
                product(ring, share, QKV, work, [&](int row, int column, float v) {
                    if (column < columns && row < QKV) a.qkv_out[(i64)column * QKV + row] = v;
                });
            }
            grid_barrier(a, phase);
            const int units = a.rows * KV_HEADS;
            for (int unit = blockIdx.x; unit < units * CHUNKS; unit += gridDim.x) {
                const int chunk = unit / units, row = unit % units / KV_HEADS;
                const i64 past = a.past[row] + done;
                if ((i64)chunk * CHUNK < past + tokens) attend(a, layer, row, unit % KV_HEADS, chunk, past, tokens, work);
            }
            grid_barrier(a, phase);
            {
                Share<Q_P> share;
                load(share, columns, [&](float *v, int column, int k) {
                    if (CHUNKS == 1) return read8(v, a.mixed + (i64)column * Q_P + k);
                    if (k >= Q) return;
                    const int head = k / HEAD_DIM, chunks = (int)((a.past[column / tokens] + done + column % tokens) / CHUNK) + 1;
                    float top = NOTHING, total = 0;
                    for (int c = 0; c < chunks; c++) top = fmaxf(top, __ldcg(a.peaks + (((i64)c * COLUMNS + column) * HEADS + head) * 2));
                    for (int c = 0; c < chunks; c++) {
                        const float2 peak = __ldcg((const float2 *)(a.peaks + (((i64)c * COLUMNS + column) * HEADS + head) * 2));
                        const float e = expf(peak.x - top);
                        float part[8];
                        read8(part, a.mixed + ((i64)c * COLUMNS + column) * Q_P + k);
                        total += e * peak.y;
                        for (int i = 0; i < 8; i++) v[i] += e * part[i];
                    }
                    for (int i = 0; i < 8; i++) v[i] /= total;
                });
                product(ring, share, WIDTH, work, [&](int row, int column, float v) {
                    if (column < columns && row < WIDTH) a.x[(i64)column * WIDTH_P + row] = __ldcg(before + (i64)column * WIDTH_P + row) + v;
                });
            }
            grid_barrier(a, phase);
            {
                Share<WIDTH_P> share;
                load_normal(share, a.x, a.norm2 + layer * WIDTH_P, columns, WIDTH, squares, nullptr, 0, 1);
                product(ring, share, 2 * MLP, work, [&](int row, int column, float v) {  // gate and up take turns
                    const float up = __shfl_xor_sync(~0u, v, 1);
                    if (column < columns && row % 2 == 0 && row < 2 * MLP) a.mid[(i64)column * MLP_P + row / 2] = v / (1 + expf(-v)) * up;
                });
            }
            grid_barrier(a, phase);
            {
                Share<MLP_P> share;
                load(share, columns, [&](float *v, int column, int k) { read8(v, a.mid + (i64)column * MLP_P + k); });
                product(ring, share, WIDTH, work, [&](int row, int column, float v) {
                    float *to = a.x + (i64)column * WIDTH_P + row;
                    if (column < columns && row < WIDTH) *to = __ldcg(to) + v;
                });
            }
            grid_barrier(a, phase);
        }
        {
            Share<WIDTH_P> share;
            float *hidden = blockIdx.x == 0 ? a.hidden : nullptr;
            load_normal(share, a.x, a.norm, columns, WIDTH, squares, hidden, a.next_stride, tokens);
            product(ring, share, VOCAB, work, [&](int row, int column, float v) {
                if (column < columns && row < VOCAB) a.logits[(i64)column * VOCAB + row] = v;
            });
        }
        grid_barrier(a, phase);
        for (int row = blockIdx.x; row < a.rows; row += gridDim.x) {
            const int code = choose(a, *(Choosing *)work, a.logits + (i64)(row * tokens + tokens - 1) * VOCAB, row, step);
            if (threadIdx.x == 0) {
                a.codes[(i64)row * a.codes_stride + step] = code;
                if (SHAPED) a.history[(i64)row * a.history_stride + a.spoken[row]] = code;
            }
            const Half *entry = a.table + ((i64)(ONE_HEAD ? 0 : step) * VOCAB + code) * WIDTH;
            if (a.next)
                for (int i = threadIdx.x; i < WIDTH; i += COMPUTE) a.next[(i64)row * a.next_stride + i] = wide(entry[i]);
            meet();
        }
        if (step + 1 < STEPS) grid_barrier(a, phase);
    }
    if (threadIdx.x == 0) a.phases[blockIdx.x] = phase;
}
