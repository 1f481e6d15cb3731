#include "pack.h"

#include <math.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "simd.h"

namespace pf {

namespace {

// 32 weights of one row: scale * code + minimum.
struct Quantised {
    uint8_t codes[BLOCK];
    float scale, minimum;
};

float read_half(const uint8_t *p) {
    uint16_t half;
    memcpy(&half, p, 2);
    return half_to_float(half);
}

// Low nibbles are the first half of the columns, high nibbles the second.
void read_nibbles(const uint8_t *p, Quantised &out) {
    for (int i = 0; i < 16; i++) {
        out.codes[i] = p[i] & 15;
        out.codes[16 + i] = p[i] >> 4;
    }
}

void read_q4_0(const uint8_t *row, int block, Quantised &out) {
    const uint8_t *p = row + block * 18;
    read_nibbles(p + 2, out);
    out.scale = read_half(p);
    out.minimum = -8 * out.scale;
}

void read_q4_1(const uint8_t *row, int block, Quantised &out) {
    const uint8_t *p = row + block * 20;
    read_nibbles(p + 4, out);
    out.scale = read_half(p);
    out.minimum = read_half(p + 2);
}

void read_q8_0(const uint8_t *row, int block, Quantised &out) {
    const uint8_t *p = row + block * 34;
    for (int i = 0; i < BLOCK; i++) out.codes[i] = (uint8_t)(p[2 + i] + 128);
    out.scale = read_half(p);
    out.minimum = -128 * out.scale;
}

// Eight blocks of 32 with 6-bit scales and minima in 12 bytes; codes of blocks 2i (low) and 2i + 1 (high) share bytes.
void read_q4_k(const uint8_t *row, int block, Quantised &out) {
    const uint8_t *p = row + block / 8 * 144, *packed = p + 4;
    int j = block % 8;
    int scale = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4);
    int minimum = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    for (int i = 0; i < BLOCK; i++) out.codes[i] = p[16 + j / 2 * 32 + i] >> (j % 2 * 4) & 15;
    out.scale = read_half(p) * (float)scale;
    out.minimum = -read_half(p + 2) * (float)minimum;
}

// Sixteen blocks of 16 with an int8 scale each: 4 low bits in the first 128 bytes, 2 high bits in the next 64.
void expand_q6_k(const uint8_t *row, int block, float *out) {
    const uint8_t *p = row + block / 8 * 210, *low = p + block / 4 % 2 * 64, *high = p + 128 + block / 4 % 2 * 32;
    int quarter = block % 4;
    float d = read_half(p + 208);
    for (int i = 0; i < BLOCK; i++) {
        int four = low[quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15, two = high[i] >> (2 * quarter) & 3;
        out[i] = d * (float)(int8_t)p[192 + block % 8 * 2 + i / 16] * (float)((four | two << 4) - 32);
    }
}

float read_single(const uint8_t *p) {
    float single;
    memcpy(&single, p, 4);
    return single;
}

void read_int4(const uint8_t *row, int block, Quantised &out) {
    const uint8_t *p = row + (int64_t)block * 21;
    read_nibbles(p + 5, out);
    out.scale = read_single(p);
    out.minimum = -out.scale * (float)p[4];
}

void expand_int8(const uint8_t *row, int block, float *out) {
    const uint8_t *p = row + (int64_t)block * 37;
    for (int i = 0; i < BLOCK; i++) out[i] = read_single(p) * (float)((int)p[5 + i] - (int)p[4]);
}

// e4m3: a sign, 4 bits of exponent, 3 of fraction; without a place for infinity, and with one for what is no number.
float fp8_to_float(uint8_t code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const float size = (code & 127) == 127 ? NAN
                       : exponent          ? ldexpf((float)(8 + fraction), exponent - 10)
                                           : ldexpf((float)fraction, -9);
    return code & 128 ? -size : size;
}

void expand_fp8(const uint8_t *row, int block, float *out) {
    const uint8_t *p = row + (int64_t)block * 36;
    for (int i = 0; i < BLOCK; i++) out[i] = read_single(p) * fp8_to_float(p[4 + i]);
}

// What codes of 8 bits don't hold as it is becomes the nearest: in 127 steps of the block's largest. Of Q6_K a step is at
// most a quarter of a step of the source.
template <void (*expand)(const uint8_t *row, int block, float *out)>
void read_rounded(const uint8_t *row, int block, Quantised &out) {
    float values[BLOCK], peak = 0;
    expand(row, block, values);
    for (float value : values) peak = fabsf(value) > peak || isnan(value) ? fabsf(value) : peak;
    out.scale = peak / 127;
    out.minimum = -128 * out.scale;
    float inverse = peak > 0 && isfinite(peak) ? 127 / peak : 0;
    for (int i = 0; i < BLOCK; i++) out.codes[i] = (uint8_t)(128 + (int)rintf(inverse > 0 ? values[i] * inverse : 0));
}

void read_int8(const uint8_t *row, int block, Quantised &out) {
    const uint8_t *p = row + (int64_t)block * 37;
    if (p[4] != 128) return read_rounded<expand_int8>(row, block, out);
    memcpy(out.codes, p + 5, BLOCK);
    out.scale = read_single(p);
    out.minimum = -128 * out.scale;
}

typedef void (*Expander)(const uint8_t *row, int block, float *out);
typedef void (*Reader)(const uint8_t *row, int block, Quantised &out);

struct Format {
    PackedKind kind;
    int block, size;  // columns and bytes of a block in the file
    Reader read;
    Expander expand;  // of what `read` rounds
};

const Format FORMATS[PF_NUM_FORMATS] = {
    {PACKED_F32, 1, 4, nullptr, nullptr},
    {PACKED_F16, 1, 2, nullptr, nullptr},
    {PACKED_BF16, 1, 2, nullptr, nullptr},
    {PACKED_Q8, 32, 34, read_q8_0, nullptr},
    {PACKED_Q4, 32, 18, read_q4_0, nullptr},
    {PACKED_Q4, 32, 20, read_q4_1, nullptr},
    {PACKED_Q4, 256, 144, read_q4_k, nullptr},
    {PACKED_Q8, 256, 210, read_rounded<expand_q6_k>, expand_q6_k},
    {PACKED_Q4, 32, 21, read_int4, nullptr},
    {PACKED_Q8, 32, 37, read_int8, expand_int8},
    {PACKED_Q8, 32, 36, read_rounded<expand_fp8>, expand_fp8},
};

float read_dense(int32_t format, const uint8_t *row, int64_t column) {
    float value;
    if (format == PF_F32) {
        memcpy(&value, row + 4 * column, 4);
        return value;
    }
    uint16_t half;
    memcpy(&half, row + 2 * column, 2);
    return format == PF_F16 ? half_to_float(half) : bfloat_to_float(half);
}

// The power of two that brings the largest scale or minimum of the weight to [2^13, 2^14), inside half precision.
bool find_unit(const PfWeight &weight, const Format &format, int blocks, float &unit) {
    float peak = 0;
    bool finite = true;
    Quantised block;
    for (int64_t row = 0; row < weight.rows; row++)
        for (int b = 0; b < blocks; b++) {
            format.read((const uint8_t *)weight.data + row * row_bytes(weight.format, weight.columns), b, block);
            finite = finite && isfinite(block.scale) && isfinite(block.minimum);
            peak = std::max(peak, std::max(fabsf(block.scale), fabsf(block.minimum)));
        }
    int exponent = 0;
    if (finite && peak > 0) frexpf(peak, &exponent);
    unit = ldexpf(1, exponent - 14);
    return finite;
}

// Puts one nibble of each of 32 codes where packed_dot reads it.
void put_nibbles(uint8_t (*out)[64], int lane, const uint8_t *codes, int shift) {
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 4; i++)
            out[j][4 * lane + i] = (uint8_t)((codes[8 * j + i] >> shift & 15) | (codes[8 * j + 4 + i] >> shift & 15) << 4);
}

bool pack_quantised(const PfWeight &weight, Packed &packed, uint8_t *data, uint8_t *low) {
    const Format &format = FORMATS[weight.format];
    if (!find_unit(weight, format, packed.blocks, packed.unit)) return false;
    Quantised block;
    for (int64_t row = 0; row < weight.rows; row++) {
        const uint8_t *source = (const uint8_t *)weight.data + row * row_bytes(weight.format, weight.columns);
        int64_t first = row / GROUP * packed.blocks;
        int lane = (int)(row % GROUP);
        for (int b = 0; b < packed.blocks; b++) {
            format.read(source, b, block);
            if (packed.kind == PACKED_Q4) {
                Q4Block &to = ((Q4Block *)data)[first + b];
                to.scale[lane] = float_to_half(block.scale / packed.unit);
                to.minimum[lane] = float_to_half(block.minimum / packed.unit);
                put_nibbles(to.codes, lane, block.codes, 0);
            } else {
                Q8High &to = ((Q8High *)data)[first + b];
                to.scale[lane] = float_to_half(block.scale / packed.unit);
                put_nibbles(to.codes, lane, block.codes, 4);
                put_nibbles(((Q8Low *)low)[first + b].codes, lane, block.codes, 0);
            }
        }
    }
    return true;
}

bool pack_dense(const PfWeight &weight, Packed &packed, uint8_t *data) {
    const int size = FORMATS[weight.format].size, step = weight.format == PF_BF16 ? 2 : 1;
    const int64_t columns = round_up(weight.columns, step);
    bool finite = true;
    packed.unit = 1;
    for (int64_t row = 0; row < weight.rows; row++) {
        const uint8_t *source = (const uint8_t *)weight.data + row * row_bytes(weight.format, weight.columns);
        for (int64_t k = 0; k < weight.columns; k++) {
            int64_t at = (row / GROUP * columns + k / step * step) * GROUP + row % GROUP * step + k % step;
            memcpy(data + at * size, source + k * size, (size_t)size);
            finite = finite && isfinite(read_dense(weight.format, source, k));
        }
    }
    return finite;
}

}  // namespace

int64_t row_bytes(int32_t format, int64_t columns) {
    return columns / FORMATS[format].block * FORMATS[format].size;
}

int format_block(int32_t format) { return FORMATS[format].block; }

PackedKind packed_kind(int32_t format) { return FORMATS[format].kind; }

Packed plan_packed(const PfWeight &weight) {
    Packed packed = {};
    packed.kind = FORMATS[weight.format].kind;
    packed.rows = weight.rows;
    packed.columns = weight.columns;
    packed.groups = (int)(round_up(weight.rows, GROUP) / GROUP);
    packed.blocks = FORMATS[weight.format].read ? weight.columns / BLOCK : 0;
    return packed;
}

size_t data_bytes(const Packed &packed) {
    size_t groups = (size_t)packed.groups, blocks = groups * (size_t)packed.blocks;
    switch (packed.kind) {
        case PACKED_F32: return groups * GROUP * (size_t)packed.columns * 4;
        case PACKED_F16: return groups * GROUP * (size_t)packed.columns * 2;
        case PACKED_BF16: return groups * GROUP * (size_t)round_up(packed.columns, 2) * 2;
        case PACKED_Q4: return blocks * sizeof(Q4Block);
        case PACKED_Q8: return blocks * sizeof(Q8High);
    }
    return 0;
}

size_t low_bytes(const Packed &packed) {
    return packed.kind == PACKED_Q8 ? (size_t)packed.groups * (size_t)packed.blocks * sizeof(Q8Low) : 0;
}

bool pack(const PfWeight &weight, Packed &packed, uint8_t *data, uint8_t *low) {
    packed.data = data;
    packed.low = low;
    return FORMATS[weight.format].read ? pack_quantised(weight, packed, data, low) : pack_dense(weight, packed, data);
}

void expand_row(const PfWeight &weight, int64_t row, float *out) {
    const uint8_t *source = (const uint8_t *)weight.data + row * row_bytes(weight.format, weight.columns);
    const Format &format = FORMATS[weight.format];
    if (!format.read) {
        for (int64_t k = 0; k < weight.columns; k++) out[k] = read_dense(weight.format, source, k);
        return;
    }
    for (int b = 0; b < weight.columns / BLOCK; b++, out += BLOCK) {
        Quantised block;
        if (format.expand) {
            format.expand(source, b, out);
            continue;
        }
        format.read(source, b, block);
        for (int i = 0; i < BLOCK; i++) out[i] = block.scale * (float)block.codes[i] + block.minimum;
    }
}

}  // namespace pf
