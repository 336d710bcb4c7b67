// A few vectors times a matrix as it lies in a checkpoint, one warp a row of it. For what a frame needs once.
// Defined by the compiler's options: BF16.
struct Arguments {
    const Half *matrix, *bias;  // [outputs, inputs], [outputs]
    const Half *table;          // with `ids`: rows of this table [, inputs] are the vectors
    const i64 *ids;             // [rows]
    const float *vectors;       // else [rows, inputs]
    const Half *extra;          // null, or a table [, outputs] of which a row for each code is added
    const i64 *codes, *starts;  // [rows, groups], negative where there is none; [groups] first row of each group
    float *to;                  // rows of to_stride
    int inputs, outputs, rows, to_stride, groups, silu;
};

extern "C" __global__ void __launch_bounds__(256) linear(const __grid_constant__ Arguments a) {
    const int output = blockIdx.x * 8 + threadIdx.x / 32, row = blockIdx.y, lane = threadIdx.x % 32;
    if (output >= a.outputs) return;
    const Half *matrix = a.matrix + (i64)output * a.inputs;
    const Half *entry = a.table ? a.table + a.ids[row] * a.inputs : nullptr;
    float sum = 0;
    for (int k = lane * 2; k < a.inputs; k += 64) {
        const ushort2 w = *(const ushort2 *)(matrix + k);
        float2 x;
        if (entry) {
            const ushort2 e = *(const ushort2 *)(entry + k);
            x = make_float2(wide(e.x), wide(e.y));
        } else {
            x = *(const float2 *)(a.vectors + (i64)row * a.inputs + k);
        }
        sum += wide(w.x) * x.x + wide(w.y) * x.y;
    }
#pragma unroll
    for (int i = 16; i; i >>= 1) sum += __shfl_xor_sync(~0u, sum, i);
    if (lane) return;
    sum += wide(a.bias[output]);
    if (a.silu) sum = sum / (1 + expf(-sum));
    if (a.extra)
        for (int group = 0; group < a.groups; group++) {
            const i64 code = a.codes[(i64)row * a.groups + group];
            if (code >= 0) sum += wide(a.extra[(a.starts[group] + code) * a.outputs + output]);
        }
    a.to[(i64)row * a.to_stride + output] = sum;
}
