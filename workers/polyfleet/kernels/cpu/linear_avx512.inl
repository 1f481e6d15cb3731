// Linears over quantised weights with AVX-512 VNNI: vpdpbusd multiplies four unsigned codes of each of 16 weight rows
// by four signed numbers of a row and adds the products in 32 bits.
#include "kernels.h"
#include "simd.h"

const int TILE_ROWS = 8;  // eight registers of codes, eight sums, eight totals

#include "linear_tiles.inl"

namespace {

PF_INLINE __m512i load_codes(const uint8_t *p) { return _mm512_loadu_si512((const void *)p); }

PF_INLINE __m512 load_scales(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }

// total[n] += (scale * codes + minimum) times block b of row n. Rows take turns: a product waits for the last one of its row, and
// the processor looks only some hundred instructions ahead for others.
template <int N>
PF_INLINE void add_block(const __m512i codes[8], __m512 scale, __m512 minimum, const Tile &tile, int b, __m512 total[N]) {
    const int8_t *x = tile.codes + b * pf::BLOCK;
    __m512i dot[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) dot[n] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            int32_t four;
            memcpy(&four, x + (int64_t)n * tile.stride + 4 * j, 4);
            dot[n] = _mm512_dpbusd_epi32(dot[n], codes[j], _mm512_set1_epi32(four));
        }
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
        __m512 s = _mm512_mul_ps(scale, _mm512_set1_ps(tile.scale[n * tile.blocks + b]));
        total[n] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(tile.sum[n * tile.blocks + b]), total[n]);
        total[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[n]), s, total[n]);
    }
}

template <int N>
PF_INLINE void store_tile(const Tile &tile, const __m512 total[N], float unit) {
    for (int n = 0; n < N; n++)
        _mm512_storeu_ps(tile.out + (int64_t)n * tile.out_stride, _mm512_mul_ps(total[n], _mm512_set1_ps(unit)));
}

template <typename Format, int N>
PF_INLINE void run_blocks(const pf::Packed &weight, int group, const Tile &tile) {
    __m512 total[N];
    for (int n = 0; n < N; n++) total[n] = _mm512_setzero_ps();
    for (int b = 0; b < weight.blocks; b++) {
        Format::template fetch<N>(weight, group, b, tile);
        __m512i codes[8];
        __m512 scale, minimum;
        Format::unpack(weight, group, b, codes, scale, minimum);
        add_block<N>(codes, scale, minimum, tile, b, total);
    }
    store_tile<N>(tile, total, weight.unit);
}

struct Q4 {
    // Block b of a group: the codes of columns 4j ... 4j + 3 of each row, and what they are worth.
    PF_INLINE void unpack(const pf::Packed &weight, int group, int b, __m512i codes[8], __m512 &scale,
                                 __m512 &minimum) {
        const pf::Q4Block *block = (const pf::Q4Block *)weight.data + (int64_t)group * weight.blocks + b;
        const __m512i mask = _mm512_set1_epi8(15);
        for (int j = 0; j < 4; j++) {
            __m512i both = load_codes(block->codes[j]);
            codes[2 * j] = _mm512_and_si512(both, mask);
            codes[2 * j + 1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
        }
        scale = load_scales(block->scale);
        minimum = load_scales(block->minimum);
    }

    template <int N>
    PF_INLINE void fetch(const pf::Packed &weight, int group, int b, const Tile &tile) {
        const pf::Q4Block *block = (const pf::Q4Block *)weight.data + (int64_t)group * weight.blocks + b;
        fetch_ahead<N>(block, sizeof(pf::Q4Block), tile);
    }

    template <int N>
    static void run(const pf::Packed &weight, int group, const Tile &tile) {
        run_blocks<Q4, N>(weight, group, tile);
    }
};

struct Q8 {
    PF_INLINE void unpack(const pf::Packed &weight, int group, int b, __m512i codes[8], __m512 &scale,
                                 __m512 &minimum) {
        const int64_t at = (int64_t)group * weight.blocks + b;
        const pf::Q8High *high = (const pf::Q8High *)weight.data + at;
        const pf::Q8Low *low = (const pf::Q8Low *)weight.low + at;
        const __m512i mask = _mm512_set1_epi8(15);
        for (int j = 0; j < 4; j++) {
            __m512i upper = load_codes(high->codes[j]), lower = load_codes(low->codes[j]);
            __m512i first = _mm512_andnot_si512(mask, _mm512_slli_epi16(upper, 4));
            __m512i second = _mm512_andnot_si512(mask, upper);
            codes[2 * j] = _mm512_or_si512(first, _mm512_and_si512(lower, mask));
            codes[2 * j + 1] = _mm512_or_si512(second, _mm512_and_si512(_mm512_srli_epi16(lower, 4), mask));
        }
        scale = load_scales(high->scale);
        minimum = _mm512_mul_ps(scale, _mm512_set1_ps(-128));
    }

    template <int N>
    PF_INLINE void fetch(const pf::Packed &weight, int group, int b, const Tile &tile) {
        const int64_t at = (int64_t)group * weight.blocks + b;
        fetch_ahead<N>((const pf::Q8High *)weight.data + at, sizeof(pf::Q8High), tile);
        fetch_ahead<N>((const pf::Q8Low *)weight.low + at, sizeof(pf::Q8Low), tile);
    }

    template <int N>
    static void run(const pf::Packed &weight, int group, const Tile &tile) {
        run_blocks<Q8, N>(weight, group, tile);
    }
};

}  // namespace
