// Linears over quantised weights with AVX2: unsigned codes times signed rows, 8 weight rows in a register.
//
// vpmaddubsw adds neighbouring products to 16 bits: 4-bit codes give at most 2 * 15 * 128, so a block's eight products
// fit before they are widened. 8-bit codes are two planes of 4-bit ones.
#include "kernels.h"
#include "simd.h"

const int TILE_ROWS = 4;  // eight accumulators and four registers of codes

#include "linear_tiles.inl"

namespace {

PF_INLINE __m256i load_bytes(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

PF_INLINE __m256i broadcast4(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
}

// The barrier keeps compilers from reordering the sums into a tree, which spills registers.
PF_INLINE void accumulate(__m256i &acc, __m256i codes, __m256i x, bool first) {
    __m256i products = _mm256_maddubs_epi16(codes, x);
    acc = first ? products : _mm256_add_epi16(acc, products);
    __asm__("" : "+x"(acc));
}

PF_INLINE __m256i widen(__m256i acc) { return _mm256_madd_epi16(acc, _mm256_set1_epi16(1)); }

PF_INLINE __m256 load_half(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }

// sum[n][0 and 1] (16 bits) = 4-bit codes of 8 rows in `first` and in `second`, 64 bytes between their columns, times
// one block of N rows.
template <int N>
PF_INLINE void dot(const uint8_t *first, const uint8_t *second, const int8_t *x, int stride, __m256i sum[N][2]) {
    const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m256i a = load_bytes(first + 64 * j), b = load_bytes(second + 64 * j);
        __m256i a1 = _mm256_and_si256(_mm256_srli_epi16(a, 4), mask), b1 = _mm256_and_si256(_mm256_srli_epi16(b, 4), mask);
        a = _mm256_and_si256(a, mask), b = _mm256_and_si256(b, mask);
        for (int n = 0; n < N; n++) {
            __m256i x0 = broadcast4(x + n * stride + 8 * j), x1 = broadcast4(x + n * stride + 8 * j + 4);
            accumulate(sum[n][0], a, x0, j == 0);
            accumulate(sum[n][1], b, x0, j == 0);
            accumulate(sum[n][0], a1, x1, false);
            accumulate(sum[n][1], b1, x1, false);
        }
    }
}

template <int N>
PF_INLINE void store_tile(const Tile &tile, const __m256 total[N][2], float unit) {
    for (int n = 0; n < N; n++)
        for (int h = 0; h < 2; h++)
            _mm256_storeu_ps(tile.out + (int64_t)n * tile.out_stride + 8 * h,
                             _mm256_mul_ps(total[n][h], _mm256_set1_ps(unit)));
}

struct Q4 {
    template <int N>
    static void run(const pf::Packed &weight, int group, const Tile &tile) {
        const pf::Q4Block *block = (const pf::Q4Block *)weight.data + (int64_t)group * weight.blocks;
        __m256 total[N][2];
        for (int n = 0; n < N; n++) total[n][0] = total[n][1] = _mm256_setzero_ps();
        for (int b = 0; b < tile.blocks; b++, block++) {
            fetch_ahead<N>(block, sizeof(pf::Q4Block), tile);
            __m256i sum[N][2];
            dot<N>(block->codes[0], block->codes[0] + 32, tile.codes + b * pf::BLOCK, tile.stride, sum);
            for (int h = 0; h < 2; h++) {
                __m256 d = load_half(block->scale + 8 * h), m = load_half(block->minimum + 8 * h);
                for (int n = 0; n < N; n++) {
                    __m256 s = _mm256_broadcast_ss(tile.scale + n * tile.blocks + b);
                    __m256 offset = _mm256_broadcast_ss(tile.sum + n * tile.blocks + b);
                    total[n][h] = _mm256_fmadd_ps(m, offset, total[n][h]);
                    total[n][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(widen(sum[n][h])), _mm256_mul_ps(d, s), total[n][h]);
                }
            }
        }
        store_tile<N>(tile, total, weight.unit);
    }
};

struct Q8 {
    template <int N>
    static void run(const pf::Packed &weight, int group, const Tile &tile) {
        const pf::Q8High *high = (const pf::Q8High *)weight.data + (int64_t)group * weight.blocks;
        const pf::Q8Low *low = (const pf::Q8Low *)weight.low + (int64_t)group * weight.blocks;
        __m256 total[N][2];
        for (int n = 0; n < N; n++) total[n][0] = total[n][1] = _mm256_setzero_ps();
        for (int b = 0; b < tile.blocks; b++, high++, low++) {
            fetch_ahead<N>(high, sizeof(pf::Q8High), tile);
            fetch_ahead<N>(low, sizeof(pf::Q8Low), tile);
            for (int h = 0; h < 2; h++) {
                __m256i sum[N][2];  // of the high and low halves of codes
                dot<N>(high->codes[0] + 32 * h, low->codes[0] + 32 * h, tile.codes + b * pf::BLOCK, tile.stride, sum);
                __m256 d = load_half(high->scale + 8 * h);
                for (int n = 0; n < N; n++) {
                    __m256i both = _mm256_add_epi32(_mm256_slli_epi32(widen(sum[n][0]), 4), widen(sum[n][1]));
                    __m256 s = _mm256_broadcast_ss(tile.scale + n * tile.blocks + b);
                    __m256 offset = _mm256_set1_ps(-128 * tile.sum[n * tile.blocks + b]);
                    total[n][h] = _mm256_fmadd_ps(d, _mm256_fmadd_ps(_mm256_cvtepi32_ps(both), s, offset), total[n][h]);
                }
            }
        }
        store_tile<N>(tile, total, weight.unit);
    }
};

}  // namespace
