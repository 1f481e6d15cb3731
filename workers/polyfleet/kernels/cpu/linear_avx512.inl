// Linears over quantised weights with AVX-512 VNNI: vpdpbusd multiplies four unsigned codes of each of 16 weight rows
// by four signed numbers of a row and adds the products in 32 bits.
#include "kernels.h"
#include "simd.h"

namespace {

const int MAX_TILE = 8;  // rows that share an unpacked block: 8 registers of codes, 8 sums, 8 totals

PF_INLINE __m512i load_codes(const uint8_t *p) { return _mm512_loadu_si512((const void *)p); }

PF_INLINE __m512 load_scales(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }

struct Q4 {
    const pf::Q4Block *block;

    PF_INLINE Q4 at(const pf::Packed &weight, int group) {
        return {(const pf::Q4Block *)weight.data + (int64_t)group * weight.blocks};
    }
    PF_INLINE void unpack(const Q4 &b, __m512i codes[8], __m512 &scale, __m512 &minimum) {
        const __m512i mask = _mm512_set1_epi8(15);
        for (int j = 0; j < 4; j++) {
            __m512i both = load_codes(b.block->codes[j]);
            codes[2 * j] = _mm512_and_si512(both, mask);
            codes[2 * j + 1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
        }
        scale = load_scales(b.block->scale);
        minimum = load_scales(b.block->minimum);
    }
    void next() { block++; }
};

struct Q8 {
    const pf::Q8High *high;
    const pf::Q8Low *low;

    PF_INLINE Q8 at(const pf::Packed &weight, int group) {
        return {(const pf::Q8High *)weight.data + (int64_t)group * weight.blocks,
                (const pf::Q8Low *)weight.low + (int64_t)group * weight.blocks};
    }
    PF_INLINE void unpack(const Q8 &b, __m512i codes[8], __m512 &scale, __m512 &minimum) {
        const __m512i mask = _mm512_set1_epi8(15);
        for (int j = 0; j < 4; j++) {
            __m512i upper = load_codes(b.high->codes[j]), lower = load_codes(b.low->codes[j]);
            codes[2 * j] = _mm512_or_si512(_mm512_andnot_si512(mask, _mm512_slli_epi16(upper, 4)), _mm512_and_si512(lower, mask));
            codes[2 * j + 1] = _mm512_or_si512(_mm512_andnot_si512(mask, upper),
                                               _mm512_and_si512(_mm512_srli_epi16(lower, 4), mask));
        }
        scale = load_scales(b.high->scale);
        minimum = _mm512_mul_ps(scale, _mm512_set1_ps(-128));
    }
    void next() { high++, low++; }
};

template <int N, typename F>
void quantised_tile(const pf::Packed &weight, int group, const pf::Rows &rows, int first, float *out, int out_stride) {
    F block = F::at(weight, group);
    const int8_t *x = rows.codes + (int64_t)first * rows.columns;
    const float *scale = rows.scale + (int64_t)first * weight.blocks, *sum = rows.sum + (int64_t)first * weight.blocks;
    __m512 total[N];
    for (int n = 0; n < N; n++) total[n] = _mm512_setzero_ps();
    for (int b = 0; b < weight.blocks; b++, block.next()) {
        __m512i codes[8];
        __m512 d, m;
        F::unpack(block, codes, d, m);
        for (int n = 0; n < N; n++) {
            __m512i dot = _mm512_setzero_si512();
            for (int j = 0; j < 8; j++) {
                int32_t four;
                memcpy(&four, x + (int64_t)n * rows.columns + b * pf::BLOCK + 4 * j, 4);
                dot = _mm512_dpbusd_epi32(dot, codes[j], _mm512_set1_epi32(four));
            }
            __m512 s = _mm512_mul_ps(d, _mm512_set1_ps(scale[n * weight.blocks + b]));
            total[n] = _mm512_fmadd_ps(m, _mm512_set1_ps(sum[n * weight.blocks + b]), total[n]);
            total[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), s, total[n]);
        }
    }
    for (int n = 0; n < N; n++)
        _mm512_storeu_ps(out + (int64_t)n * out_stride, _mm512_mul_ps(total[n], _mm512_set1_ps(weight.unit)));
}

template <typename F>
void linear_quantised(const pf::Packed &weight, int group, const pf::Rows &rows, int first, int count, float *out,
                      int out_stride) {
    for (; count >= MAX_TILE; count -= MAX_TILE, first += MAX_TILE, out += (int64_t)MAX_TILE * out_stride)
        quantised_tile<MAX_TILE, F>(weight, group, rows, first, out, out_stride);
    if (count >= 4) {
        quantised_tile<4, F>(weight, group, rows, first, out, out_stride);
        count -= 4, first += 4, out += (int64_t)4 * out_stride;
    }
    switch (count) {
        case 3: return quantised_tile<3, F>(weight, group, rows, first, out, out_stride);
        case 2: return quantised_tile<2, F>(weight, group, rows, first, out, out_stride);
        case 1: return quantised_tile<1, F>(weight, group, rows, first, out, out_stride);
    }
}

}  // namespace
