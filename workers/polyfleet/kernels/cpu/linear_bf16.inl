// Linears over bfloat16 weights with AVX512-BF16: vdpbf16ps multiplies two columns of each of 16 weight rows by two
// numbers of a row, rounded to bfloat16, and adds the products in float32.
#include "kernels.h"
#include "simd.h"

namespace {

const int BF16_TILE = 8;

void round_bf16(const float *x, int n, uint16_t *out) {
    int i = 0;
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(out + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
    const __mmask16 rest = (__mmask16)((1u << (n - i)) - 1);
    _mm256_mask_storeu_epi16(out + i, rest, (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(rest, x + i)));
    if (n % 2) out[n] = 0;
}

template <int N>
PF_INLINE void bf16_tile(const uint16_t *w, int pairs, const uint16_t *x, int stride, float *out, int out_stride) {
    __m512 total[N];
    for (int n = 0; n < N; n++) total[n] = _mm512_setzero_ps();
    for (int k = 0; k < pairs; k++, w += 2 * pf::GROUP) {
        __m512bh weight = (__m512bh)_mm512_loadu_si512((const void *)w);
        for (int n = 0; n < N; n++) {
            int32_t two;
            memcpy(&two, x + (int64_t)n * stride + 2 * k, 4);
            total[n] = _mm512_dpbf16_ps(total[n], weight, (__m512bh)_mm512_set1_epi32(two));
        }
    }
    for (int n = 0; n < N; n++) _mm512_storeu_ps(out + (int64_t)n * out_stride, total[n]);
}

void linear_bf16(const pf::Packed &weight, int group, const pf::Rows &rows, int first, int count, float *out,
                 int out_stride) {
    const int pairs = (weight.columns + 1) / 2;
    const uint16_t *w = (const uint16_t *)weight.data + (int64_t)group * pf::GROUP * 2 * pairs;
    const uint16_t *x = rows.halves + (int64_t)first * rows.halves_stride;
    int i = 0;
    for (; i + BF16_TILE <= count; i += BF16_TILE)
        bf16_tile<BF16_TILE>(w, pairs, x + (int64_t)i * rows.halves_stride, rows.halves_stride,
                             out + (int64_t)i * out_stride, out_stride);
    for (; i < count; i++)
        bf16_tile<1>(w, pairs, x + (int64_t)i * rows.halves_stride, rows.halves_stride, out + (int64_t)i * out_stride,
                     out_stride);
}

}  // namespace
