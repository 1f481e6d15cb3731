// The seam between the executor and its instruction sets: packed operands, and one table of functions per set.
//
// Functions here are static, and kernels use no library templates: this header is compiled with each set's own flags,
// and the linker must not merge one set's copy with another's.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace pf {

const int GROUP = 16;     // rows (outputs) of a packed weight that are computed together, one a lane
const int BLOCK = 32;     // columns that share a scale, in packed weights and in quantised rows
const int MAX_LINEAR = 5;

static inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

enum PackedKind { PACKED_F32, PACKED_F16, PACKED_BF16, PACKED_Q4, PACKED_Q8 };

// 16 rows x 32 columns of 4-bit codes c, worth scale * c + minimum. Byte 4 * row + i of codes[j] holds the codes of
// columns 8j + i (low nibble) and 8j + 4 + i (high nibble): as many bytes as 32-bit lanes can multiply and add at once.
struct Q4Block {
    uint16_t scale[GROUP], minimum[GROUP];  // half precision
    uint8_t codes[4][64];
};

// The same of 8-bit codes 16 * high + low, worth scale * (code - 128); the low halves lie in a second array.
struct Q8High {
    uint16_t scale[GROUP];
    uint8_t codes[4][64];
};
struct Q8Low {
    uint8_t codes[4][64];
};

// Groups of 16 rows (the last padded with zeros), each a run of blocks; dense kinds hold [group][column][16], and
// bfloat16 [group][column / 2][16][2].
struct Packed {
    PackedKind kind;
    int rows, columns;
    int groups, blocks;   // blocks of one group
    const uint8_t *data;  // Q4Block, Q8High, float, uint16_t
    const uint8_t *low;   // Q8Low
    float unit;           // results are multiplied by this power of two; keeps scales inside half precision
};

// 16 rows of a weight, and where the first of the rows that they are multiplied by has its results.
struct Outputs {
    const Packed *weight;
    int group;
    float *out;
};

// Rows entering a linear: float, and when a weight is quantised also as int8 codes of blocks of 32.
struct Rows {
    const float *values;
    int stride;  // of values, in floats
    const int8_t *codes;  // null when rows are wide: halves are read
    const float *scale;   // [row][blocks]
    const float *sum;     // scale * sum of the block's codes
    int columns;          // codes between rows; columns / 32 blocks
    const uint16_t *halves;  // bfloat16, when a weight is bfloat16 and round_bf16 is there, or when rows are wide
    int halves_stride;       // even; whole tiles of 16 rows may be read
};

// Query rows of one sequence (consecutive positions) and all heads that share one key-value head.
struct Attention {
    const float *query;  // [rows][heads * head_dim] inside rows `query_stride` apart
    float *out;
    int query_stride, out_stride;
    int rows, heads, head_dim;
    int value_dim;  // columns of a value that count: of its first ones, and of a head in `out`
    int position;  // of the first row; row i sees positions 0 ... position + i,
    int window;    // or the last so many of them, unless it is 0
    int begin, end;  // those of these positions to read; one part of them, or all from 0 on
    const float *sinks;  // of each head a logit that takes its share of the softmax, or null
    float scale, cap;  // of products, which are then capped unless `cap` is 0
    const uint8_t *keys;    // of each block [head_dim][key_stride] numbers; column = position in block
    const uint8_t *values;  // of each block [position in block][value_stride] numbers
    bool codes;  // numbers are int8, worth code * scale; else half precision, without scales
    int64_t key_block, value_block;    // bytes between blocks
    int64_t key_scales, value_scales;  // bytes from a block's numbers to their scales, bfloat16 [position in block]
    int key_stride, value_stride;      // numbers
    int block_size;
    bool wide;  // see Kernels::wide_rows
    const int32_t *table;
    float *scratch;   // attention_scratch(head_dim, ATTENTION_ROWS * heads) floats, 64-byte aligned
    float *partial;   // null: out is final. Else the softmax of one part goes here, attention_partial(…) floats
};

const int ATTENTION_CHUNK = 64;  // positions whose keys or values are converted at a time
const int ATTENTION_PART = 256;  // positions whose softmax is computed apart, from multiples of it on: a unit of work
const int ATTENTION_STRIDE = ATTENTION_PART + GROUP, ATTENTION_KEY_STRIDE = ATTENTION_CHUNK + GROUP;
const int ATTENTION_ROWS = 16;   // query rows of a unit of work

// Floats that the softmax of one part takes; vectors are rows * heads.
static inline size_t attention_partial(int head_dim, int vectors) {
    return (size_t)(round_up(vectors, GROUP) * (round_up(head_dim, GROUP) + 2));
}

static inline size_t attention_scratch(int head_dim, int vectors) {
    size_t dim = round_up(head_dim, GROUP), padded = round_up(vectors, GROUP);
    return 2 * dim * ATTENTION_KEY_STRIDE + padded * (dim + ATTENTION_STRIDE) + 2 * attention_partial(head_dim, vectors);
}

// What an adapter adds to one weight: see PfLowRank of abi.h.
struct LowRank {
    int rank, rows, columns, bits;
    const uint8_t *down, *up;
};

// Columns as they are stored, and bytes of a group of 16 rows.
static inline int low_rank_columns(int bits, int columns) { return (int)round_up(columns, bits == 4 ? 8 : bits == 8 ? 4 : 1); }
static inline size_t low_rank_bytes(int bits, int columns) {
    return (size_t)GROUP * (sizeof(uint16_t) + (size_t)low_rank_columns(bits, columns) * (size_t)bits / 8);
}

// Floats for the row between both matrices, also in codes.
static inline size_t low_rank_room(int rank) {
    const size_t narrow = (size_t)round_up(rank, BLOCK);
    return narrow + 2 * (narrow / BLOCK) + narrow / sizeof(float);
}

const int SCAN_ROW = 4096;  // bytes

struct Kernels {
    const char *name;

    // So many rows of one sequence and more may be wide: what meets quantised weights, and these themselves, are
    // rounded to bfloat16, and attention may round. Other rows compute to the same bits in any company. 0: none is.
    int wide_rows;

    // y = (x + residual) / rms * weight over n columns; the sum goes to `total` unless null, as `residual` may be.
    void (*norm)(const float *x, const float *residual, float *total, const float *weight, float eps, int n, float *y);

    // Codes round(x / scale), scale = largest magnitude / 127, of n / 32 blocks. A block that is not finite gets a
    // scale that is not finite.
    void (*quantise)(const float *x, int n, int8_t *codes, float *scale, float *sum);

    // Rounds a row to bfloat16, padded with 0 to an even length; null where linears don't read that.
    void (*round_bf16)(const float *x, int n, uint16_t *out);

    // Of each of the outputs, whose weights are of this kind and as wide: out[i][0 ... 15] = rows first + i (i < count)
    // times the 16 weight rows.
    void (*linear[MAX_LINEAR])(const Outputs *outputs, int num_outputs, const Rows &rows, int first, int count, int out_stride);
    const char *linear_name[MAX_LINEAR];

    // Of rows of n numbers, of gate and up `stride` apart.
    void (*silu_mul)(const float *gate, const float *up, int rows, int stride, int n, float *y, int y_stride);
    void (*rotate)(float *x, const float *cosine, const float *sine, int half_dim);  // half-split pairs (i, i + half_dim)
    bool (*store_half)(const float *x, int n, int stride, uint16_t *out);  // false when not all are finite then
    // The same as codes of -127 ... 127 and what they count times: the largest magnitude / 127, rounded to bfloat16.
    bool (*store_codes)(const float *x, int n, int stride, int8_t *out, uint16_t *scale);
    void (*attend)(const Attention &attention);
    // The same result from the softmaxes of all parts, which lie behind each other at `partial`.
    void (*combine)(const Attention &attention, int parts);
    // y[rows] += up @ (down @ x) of one row x, which is read as codes where the part is in codes, and so is the row between:
    // of parts of 4, 8 and 16 bits, by bits / 8. `room` is low_rank_room(…) floats.
    void (*low_rank[3])(const LowRank &part, const Rows &x, float *room, float *y);
    // Index and value of the largest of n numbers, the first of equal ones; false when not all are finite.
    bool (*largest)(const float *x, int n, int *index, float *value);
    // See pf_scan of abi.h.
    uint32_t (*scan)(const void *data, int64_t num_bytes, int number_bytes, uint64_t *sums, void *into);
};

extern const Kernels plain_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels, avx512_kernels, avx512bf16_kernels, amx_kernels;
#endif

}  // namespace pf
