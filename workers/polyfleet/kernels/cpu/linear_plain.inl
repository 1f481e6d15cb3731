// Linears over quantised weights in plain C++, whose loops over 16 lanes compilers turn into what the machine has.
#include "kernels.h"
#include "simd.h"

namespace {

// lanes[r] = sum over 32 columns of code[r][column] * x[column].
PF_INLINE void block_dot(const uint8_t (*codes)[64], const int8_t *x, int32_t *lanes) {
    for (int r = 0; r < pf::GROUP; r++) lanes[r] = 0;
    for (int j = 0; j < 4; j++)
        for (int r = 0; r < pf::GROUP; r++)
            for (int i = 0; i < 4; i++) {
                int code = codes[j][4 * r + i];
                lanes[r] += (code & 15) * x[8 * j + i] + (code >> 4) * x[8 * j + 4 + i];
            }
}

void linear_q4(const pf::Packed &weight, int group, const pf::Rows &rows, int first, int count, float *out,
               int out_stride) {
    const pf::Q4Block *blocks = (const pf::Q4Block *)weight.data + (int64_t)group * weight.blocks;
    for (int i = first; i < first + count; i++) {
        float total[pf::GROUP] = {};
        for (int b = 0; b < weight.blocks; b++) {
            int32_t dot[pf::GROUP];
            block_dot(blocks[b].codes, rows.codes + (int64_t)i * rows.columns + b * pf::BLOCK, dot);
            float scale = rows.scale[(int64_t)i * weight.blocks + b], sum = rows.sum[(int64_t)i * weight.blocks + b];
            for (int r = 0; r < pf::GROUP; r++)
                total[r] += half_to_float(blocks[b].scale[r]) * scale * (float)dot[r] +
                            half_to_float(blocks[b].minimum[r]) * sum;
        }
        for (int r = 0; r < pf::GROUP; r++) out[(int64_t)(i - first) * out_stride + r] = total[r] * weight.unit;
    }
}

void linear_q8(const pf::Packed &weight, int group, const pf::Rows &rows, int first, int count, float *out,
               int out_stride) {
    const pf::Q8High *high = (const pf::Q8High *)weight.data + (int64_t)group * weight.blocks;
    const pf::Q8Low *low = (const pf::Q8Low *)weight.low + (int64_t)group * weight.blocks;
    for (int i = first; i < first + count; i++) {
        float total[pf::GROUP] = {};
        for (int b = 0; b < weight.blocks; b++) {
            int32_t upper[pf::GROUP], lower[pf::GROUP];
            const int8_t *x = rows.codes + (int64_t)i * rows.columns + b * pf::BLOCK;
            block_dot(high[b].codes, x, upper);
            block_dot(low[b].codes, x, lower);
            float scale = rows.scale[(int64_t)i * weight.blocks + b], sum = rows.sum[(int64_t)i * weight.blocks + b];
            for (int r = 0; r < pf::GROUP; r++)
                total[r] += half_to_float(high[b].scale[r]) * (scale * (float)(16 * upper[r] + lower[r]) - 128 * sum);
        }
        for (int r = 0; r < pf::GROUP; r++) out[(int64_t)(i - first) * out_stride + r] = total[r] * weight.unit;
    }
}

}  // namespace
