// Linears over quantised weights with AVX2: unsigned codes times signed rows, 8 weight rows in a register.
//
// vpmaddubsw adds neighbouring products to 16 bits: 4-bit codes give at most 2 * 15 * 128, so a block's eight products
// fit before they are widened. 8-bit codes are two planes of 4-bit ones.
#include "kernels.h"
#include "simd.h"

namespace {

const int TILE_ROWS = 4;  // rows that share an unpacked group; eight accumulators of 16 lanes

PF_INLINE __m256i load_bytes(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

PF_INLINE __m256i broadcast4(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
}

// The barrier keeps compilers from reordering the sums into a tree, which spills registers.
PF_INLINE void accumulate(__m256i &acc, __m256i codes, __m256i x) {
    acc = _mm256_add_epi16(acc, _mm256_maddubs_epi16(codes, x));
    __asm__("" : "+x"(acc));
}

PF_INLINE __m256i widen(__m256i acc) { return _mm256_madd_epi16(acc, _mm256_set1_epi16(1)); }

PF_INLINE __m256 load_half(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }

// acc[n][h] (16 bits) = codes of 16 rows (h: which 8) times block `x` of N rows.
template <int N>
PF_INLINE void packed_dot(const uint8_t (*codes)[64], const int8_t *x, int stride, __m256i acc[N][2]) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int n = 0; n < N; n++) acc[n][0] = acc[n][1] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m256i a = load_bytes(codes[j]), b = load_bytes(codes[j] + 32);
        __m256i a1 = _mm256_and_si256(_mm256_srli_epi16(a, 4), mask), b1 = _mm256_and_si256(_mm256_srli_epi16(b, 4), mask);
        a = _mm256_and_si256(a, mask), b = _mm256_and_si256(b, mask);
        for (int n = 0; n < N; n++) {
            __m256i x0 = broadcast4(x + n * stride + 8 * j), x1 = broadcast4(x + n * stride + 8 * j + 4);
            accumulate(acc[n][0], a, x0);
            accumulate(acc[n][1], b, x0);
            accumulate(acc[n][0], a1, x1);
            accumulate(acc[n][1], b1, x1);
        }
    }
}

template <int N>
PF_INLINE void store_tile(const __m256 total[N][2], float unit, float *out, int stride) {
    for (int n = 0; n < N; n++)
        for (int h = 0; h < 2; h++)
            _mm256_storeu_ps(out + (int64_t)n * stride + 8 * h, _mm256_mul_ps(total[n][h], _mm256_set1_ps(unit)));
}

// Few rows: unpack in registers, as the codes stream by.
template <int N>
void q4_direct(const pf::Packed &weight, int group, const pf::Rows &rows, int first, float *out, int out_stride) {
    const pf::Q4Block *block = (const pf::Q4Block *)weight.data + (int64_t)group * weight.blocks;
    const int8_t *x = rows.codes + (int64_t)first * rows.columns;
    const float *scale = rows.scale + (int64_t)first * weight.blocks, *sum = rows.sum + (int64_t)first * weight.blocks;
    __m256 total[N][2];
    for (int n = 0; n < N; n++) total[n][0] = total[n][1] = _mm256_setzero_ps();
    for (int b = 0; b < weight.blocks; b++, block++) {
        __m256i acc[N][2];
        packed_dot<N>(block->codes, x + b * pf::BLOCK, rows.columns, acc);
        for (int h = 0; h < 2; h++) {
            __m256 d = load_half(block->scale + 8 * h), m = load_half(block->minimum + 8 * h);
            for (int n = 0; n < N; n++) {
                __m256 dot = _mm256_cvtepi32_ps(widen(acc[n][h]));
                __m256 s = _mm256_broadcast_ss(scale + n * weight.blocks + b);
                total[n][h] = _mm256_fmadd_ps(m, _mm256_broadcast_ss(sum + n * weight.blocks + b), total[n][h]);
                total[n][h] = _mm256_fmadd_ps(dot, _mm256_mul_ps(d, s), total[n][h]);
            }
        }
    }
    store_tile<N>(total, weight.unit, out, out_stride);
}

template <int N>
void q8_direct(const pf::Packed &weight, int group, const pf::Rows &rows, int first, float *out, int out_stride) {
    const pf::Q8High *high = (const pf::Q8High *)weight.data + (int64_t)group * weight.blocks;
    const pf::Q8Low *low = (const pf::Q8Low *)weight.low + (int64_t)group * weight.blocks;
    const int8_t *x = rows.codes + (int64_t)first * rows.columns;
    const float *scale = rows.scale + (int64_t)first * weight.blocks, *sum = rows.sum + (int64_t)first * weight.blocks;
    __m256 total[N][2];
    for (int n = 0; n < N; n++) total[n][0] = total[n][1] = _mm256_setzero_ps();
    for (int b = 0; b < weight.blocks; b++, high++, low++) {
        __m256i upper[N][2], lower[N][2];
        packed_dot<N>(high->codes, x + b * pf::BLOCK, rows.columns, upper);
        packed_dot<N>(low->codes, x + b * pf::BLOCK, rows.columns, lower);
        for (int h = 0; h < 2; h++) {
            __m256 d = load_half(high->scale + 8 * h);
            for (int n = 0; n < N; n++) {
                __m256i both = _mm256_add_epi32(_mm256_slli_epi32(widen(upper[n][h]), 4), widen(lower[n][h]));
                __m256 offset = _mm256_set1_ps(-128 * sum[n * weight.blocks + b]);
                __m256 s = _mm256_broadcast_ss(scale + n * weight.blocks + b);
                total[n][h] = _mm256_fmadd_ps(d, _mm256_fmadd_ps(_mm256_cvtepi32_ps(both), s, offset), total[n][h]);
            }
        }
    }
    store_tile<N>(total, weight.unit, out, out_stride);
}

// Many rows: unpack a group once to a panel of 4-bit planes, one code a byte; an 8-bit block is two planes.
struct Panel {
    int planes, shift;  // plane p belongs to block p >> shift of a row
    uint8_t *codes;     // [plane][8][64]
    float *scale, *minimum;  // [plane][16]
};

PF_INLINE Panel make_panel(const pf::Packed &weight, int shift, void *scratch) {
    int planes = weight.blocks << shift;
    uint8_t *codes = (uint8_t *)scratch;
    float *scale = (float *)(codes + (int64_t)planes * pf::BLOCK * pf::GROUP);
    return {planes, shift, codes, scale, scale + (int64_t)planes * pf::GROUP};
}

PF_INLINE void unpack_codes(const uint8_t (*codes)[64], uint8_t *out) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int j = 0; j < 4; j++, out += 128)
        for (int h = 0; h < 64; h += 32) {
            __m256i both = load_bytes(codes[j] + h);
            _mm256_store_si256((__m256i *)(out + h), _mm256_and_si256(both, mask));
            _mm256_store_si256((__m256i *)(out + 64 + h), _mm256_and_si256(_mm256_srli_epi16(both, 4), mask));
        }
}

void unpack_q4(const pf::Packed &weight, int group, const Panel &panel) {
    const pf::Q4Block *block = (const pf::Q4Block *)weight.data + (int64_t)group * weight.blocks;
    for (int p = 0; p < panel.planes; p++, block++) {
        unpack_codes(block->codes, panel.codes + p * pf::BLOCK * pf::GROUP);
        for (int h = 0; h < pf::GROUP; h += 8) {
            _mm256_store_ps(panel.scale + p * pf::GROUP + h, load_half(block->scale + h));
            _mm256_store_ps(panel.minimum + p * pf::GROUP + h, load_half(block->minimum + h));
        }
    }
}

void unpack_q8(const pf::Packed &weight, int group, const Panel &panel) {
    const pf::Q8High *high = (const pf::Q8High *)weight.data + (int64_t)group * weight.blocks;
    const pf::Q8Low *low = (const pf::Q8Low *)weight.low + (int64_t)group * weight.blocks;
    for (int p = 0; p < panel.planes; p += 2, high++, low++) {
        unpack_codes(high->codes, panel.codes + p * pf::BLOCK * pf::GROUP);
        unpack_codes(low->codes, panel.codes + (p + 1) * pf::BLOCK * pf::GROUP);
        for (int h = 0; h < pf::GROUP; h += 8) {
            __m256 d = load_half(high->scale + h);
            float *scale = panel.scale + p * pf::GROUP + h, *minimum = panel.minimum + p * pf::GROUP + h;
            _mm256_store_ps(scale, _mm256_mul_ps(d, _mm256_set1_ps(16)));
            _mm256_store_ps(scale + pf::GROUP, d);
            _mm256_store_ps(minimum, _mm256_mul_ps(d, _mm256_set1_ps(-128)));
            _mm256_store_ps(minimum + pf::GROUP, _mm256_setzero_ps());
        }
    }
}

// Totals stay in memory (the first-level cache): registers are for the integer accumulators.
template <int N>
void panel_tile(const Panel &panel, const pf::Rows &rows, int first, float unit, float *out, int out_stride) {
    int blocks = panel.planes >> panel.shift;
    const int8_t *x = rows.codes + (int64_t)first * rows.columns;
    const float *scale = rows.scale + (int64_t)first * blocks, *sum = rows.sum + (int64_t)first * blocks;
    __m256 total[N][2];
    for (int n = 0; n < N; n++) total[n][0] = total[n][1] = _mm256_setzero_ps();
    const uint8_t *codes = panel.codes;
    for (int p = 0; p < panel.planes; p++) {
        int b = p >> panel.shift;
        __m256i acc[N][2];
        for (int n = 0; n < N; n++) acc[n][0] = acc[n][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++, codes += 64) {
            __m256i w0 = _mm256_load_si256((const __m256i *)codes), w1 = _mm256_load_si256((const __m256i *)(codes + 32));
            for (int n = 0; n < N; n++) {
                __m256i value = broadcast4(x + n * rows.columns + b * pf::BLOCK + 4 * j);
                accumulate(acc[n][0], w0, value);
                accumulate(acc[n][1], w1, value);
            }
        }
        for (int h = 0; h < 2; h++) {
            __m256 d = _mm256_load_ps(panel.scale + p * pf::GROUP + 8 * h);
            __m256 m = _mm256_load_ps(panel.minimum + p * pf::GROUP + 8 * h);
            for (int n = 0; n < N; n++) {
                __m256 dot = _mm256_cvtepi32_ps(widen(acc[n][h]));
                __m256 s = _mm256_broadcast_ss(scale + n * blocks + b);
                total[n][h] = _mm256_fmadd_ps(m, _mm256_broadcast_ss(sum + n * blocks + b), total[n][h]);
                total[n][h] = _mm256_fmadd_ps(dot, _mm256_mul_ps(d, s), total[n][h]);
            }
        }
    }
    store_tile<N>(total, unit, out, out_stride);
}

void panel_rows(const Panel &panel, const pf::Rows &rows, int first, int count, float unit, float *out, int stride) {
    int i = 0;
    for (; i + TILE_ROWS <= count; i += TILE_ROWS)
        panel_tile<TILE_ROWS>(panel, rows, first + i, unit, out + (int64_t)i * stride, stride);
    out += (int64_t)i * stride;
    switch (count - i) {
        case 3: return panel_tile<3>(panel, rows, first + i, unit, out, stride);
        case 2: return panel_tile<2>(panel, rows, first + i, unit, out, stride);
        case 1: return panel_tile<1>(panel, rows, first + i, unit, out, stride);
    }
}

void linear_q4(const pf::Packed &weight, int group, const pf::Rows &rows, int first, int count, float *out, int stride,
               void *scratch) {
    switch (count) {
        case 1: return q4_direct<1>(weight, group, rows, first, out, stride);
        case 2: return q4_direct<2>(weight, group, rows, first, out, stride);
        case 3: return q4_direct<3>(weight, group, rows, first, out, stride);
    }
    Panel panel = make_panel(weight, 0, scratch);
    unpack_q4(weight, group, panel);
    panel_rows(panel, rows, first, count, weight.unit, out, stride);
}

void linear_q8(const pf::Packed &weight, int group, const pf::Rows &rows, int first, int count, float *out, int stride,
               void *scratch) {
    switch (count) {
        case 1: return q8_direct<1>(weight, group, rows, first, out, stride);
        case 2: return q8_direct<2>(weight, group, rows, first, out, stride);
    }
    Panel panel = make_panel(weight, 1, scratch);
    unpack_q8(weight, group, panel);
    panel_rows(panel, rows, first, count, weight.unit, out, stride);
}

}  // namespace
