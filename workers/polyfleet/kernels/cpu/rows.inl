// Kernels over float rows, written once against F32: norm, quantisation, gate, rotation, largest.
#include "kernels.h"
#include "simd.h"

namespace {

void norm(const float *x, const float *residual, float *total, const float *weight, float eps, int n, float *y) {
    const int sums = 4;  // a sum waits for the one before
    F32 squares[sums];
    for (int j = 0; j < sums; j++) squares[j] = broadcast(0);
    float rest = 0;
    int i = 0;
    auto enter = [&](int at, F32 &sum) {
        F32 a = load(x + at);
        if (residual) a = a + load(residual + at);
        if (total) store(total + at, a);
        store(y + at, a);
        sum = multiply_add(a, a, sum);
    };
    for (; i + sums * F32::width <= n; i += sums * F32::width)
        for (int j = 0; j < sums; j++) enter(i + j * F32::width, squares[j]);
    for (; i + F32::width <= n; i += F32::width) enter(i, squares[0]);
    for (; i < n; i++) {
        float a = x[i] + (residual ? residual[i] : 0);
        if (total) total[i] = a;
        y[i] = a;
        rest += a * a;
    }
    const float all = sum((squares[0] + squares[1]) + (squares[2] + squares[3])) + rest;
    const float factor = 1 / sqrtf(all / (float)n + eps);
    for (i = 0; i + F32::width <= n; i += F32::width)
        store(y + i, load(y + i) * broadcast(factor) * load(weight + i));
    for (; i < n; i++) y[i] = y[i] * factor * weight[i];
}

void silu_mul(const float *gate, const float *up, int rows, int stride, int n, float *y, int y_stride) {
    for (; rows > 0; rows--, gate += stride, up += stride, y += y_stride) {
        int i = 0;
        for (; i + F32::width <= n; i += F32::width) {
            F32 g = load(gate + i);
            F32 e = exponential2(minimum(broadcast(126), g * broadcast(-LOG2_E)));
            store(y + i, g / (broadcast(1) + e) * load(up + i));
        }
        for (; i < n; i++) y[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
    }
}

void rotate(float *x, const float *cosine, const float *sine, int half_dim) {
    int i = 0;
    for (; i + F32::width <= half_dim; i += F32::width) {
        F32 a = load(x + i), b = load(x + half_dim + i), c = load(cosine + i), s = load(sine + i);
        store(x + i, a * c - b * s);
        store(x + half_dim + i, b * c + a * s);
    }
    for (; i < half_dim; i++) {
        float a = x[i], b = x[half_dim + i];
        x[i] = a * cosine[i] - b * sine[i];
        x[half_dim + i] = b * cosine[i] + a * sine[i];
    }
}

bool store_half(const float *x, int n, int stride, uint16_t *out) {
    F32 nothing = broadcast(0);  // it becomes NaN by what is not finite
    int i = 0, broken = 0;
    for (; i + F32::width <= n; i += F32::width) {
        uint16_t halves[F32::width];
        store(halves, load(x + i));
        nothing = nothing + load(halves) * broadcast(0);
        for (int j = 0; j < F32::width; j++) out[(int64_t)(i + j) * stride] = halves[j];
    }
    for (; i < n; i++) {
        const uint16_t half = out[(int64_t)i * stride] = float_to_half(x[i]);
        broken |= (half & 0x7c00) == 0x7c00;
    }
    return !broken && sum(nothing) == 0;
}

bool find_largest(const float *x, int n, int *index, float *value) {
    F32 best = broadcast(-INFINITY), total = broadcast(0);
    float rest = 0, peak = -INFINITY;
    int i = 0;
    for (; i + F32::width <= n; i += F32::width) {
        F32 a = load(x + i);
        best = maximum(best, a);
        total = total + a;
    }
    for (; i < n; i++) {
        if (x[i] > peak) peak = x[i];
        rest += x[i];
    }
    float other = largest(best);
    *value = other > peak ? other : peak;
    for (i = 0; i < n && x[i] != *value;) i++;
    *index = i < n ? i : -1;
    return isfinite(sum(total) + rest);
}

const float TINY = 1e-30f;  // rows below it count as zero, for 127 / x must be finite

#if defined(__AVX2__)

PF_INLINE int quantise_block(const float *x, int8_t *codes, float *scale) {
    __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8), c = _mm256_loadu_ps(x + 16), d = _mm256_loadu_ps(x + 24);
    // Magnitudes compare as integers do, and what is not finite is the largest of all.
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i m = _mm256_max_epi32(_mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(a), magnitude),
                                                  _mm256_and_si256(_mm256_castps_si256(b), magnitude)),
                                 _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(c), magnitude),
                                                  _mm256_and_si256(_mm256_castps_si256(d), magnitude)));
    __m128i n = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0x4e));
    n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0xb1));
    float peak = _mm_cvtss_f32(_mm_castsi128_ps(n));
    *scale = peak / 127;
    __m256 inverse = _mm256_set1_ps(peak > TINY ? 127 / peak : 0);
    __m256i i = _mm256_cvtps_epi32(_mm256_mul_ps(a, inverse)), j = _mm256_cvtps_epi32(_mm256_mul_ps(b, inverse));
    __m256i k = _mm256_cvtps_epi32(_mm256_mul_ps(c, inverse)), l = _mm256_cvtps_epi32(_mm256_mul_ps(d, inverse));
    __m256i total = _mm256_add_epi32(_mm256_add_epi32(i, j), _mm256_add_epi32(k, l));
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(i, j), _mm256_packs_epi32(k, l));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)codes, _mm256_permutevar8x32_epi32(bytes, order));
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
}

#else

PF_INLINE int quantise_block(const float *x, int8_t *codes, float *scale) {
    uint32_t largest_bits = 0;
    for (int i = 0; i < pf::BLOCK; i++) {  // magnitudes compare as integers do, what is not finite above all
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        largest_bits = bits > largest_bits ? bits : largest_bits;
    }
    float peak;
    memcpy(&peak, &largest_bits, 4);
    *scale = peak / 127;
    float inverse = peak > TINY && isfinite(peak) ? 127 / peak : 0;
    int total = 0;
    for (int i = 0; i < pf::BLOCK; i++) {
        float scaled = isfinite(peak) ? x[i] * inverse : 0;
        codes[i] = (int8_t)(int)rintf(scaled);
        total += codes[i];
    }
    return total;
}

#endif

// Codes are quotients, rounded to the nearest, ties to even: the same come of the same row on every processor. What is not
// finite gets a scale that is none.
bool store_codes(const float *x, int n, int stride, int8_t *out, uint16_t *scale) {
    F32 most = broadcast(0), nothing = broadcast(0);  // the latter becomes NaN by what is not finite
    float peak = 0, rest = 0;
    int i = 0;
    for (; i + F32::width <= n; i += F32::width) {
        const F32 a = load(x + i);
        most = maximum(most, maximum(a, broadcast(0) - a));
        nothing = nothing + a * broadcast(0);
    }
    for (; i < n; i++) peak = fabsf(x[i]) > peak ? fabsf(x[i]) : peak, rest += x[i] * 0;
    peak = largest(most) > peak ? largest(most) : peak;
    const bool finite = sum(nothing) + rest == 0;
    *scale = !finite ? 0x7fc0 : peak > TINY ? float_to_bfloat(peak / 127) : 0;
    const float divisor = finite && *scale ? bfloat_to_float(*scale) : INFINITY;
    for (i = 0; i + F32::width <= n; i += F32::width) {
        float codes[F32::width];
        store(codes, round_even(load(x + i) / broadcast(divisor)));
        for (int j = 0; j < F32::width; j++) out[(int64_t)(i + j) * stride] = finite ? (int8_t)codes[j] : 0;
    }
    for (; i < n; i++) out[(int64_t)i * stride] = finite ? (int8_t)rintf(x[i] / divisor) : 0;
    return finite;
}

#if defined(__AVX512VNNI__)

// Of each of four vectors of numbers and their operation over all lanes: in each lane of quarter i, that of vector i.
template <typename Operation>
PF_INLINE __m512i reduce_four(const __m512i x[4], Operation operation) {
    __m512i half[2];
    for (int i = 0; i < 2; i++)
        half[i] = operation(_mm512_shuffle_i32x4(x[2 * i], x[2 * i + 1], 0x44), _mm512_shuffle_i32x4(x[2 * i], x[2 * i + 1], 0xee));
    __m512i all = operation(_mm512_shuffle_i32x4(half[0], half[1], 0x88), _mm512_shuffle_i32x4(half[0], half[1], 0xdd));
    all = operation(all, _mm512_shuffle_epi32(all, _MM_PERM_BADC));
    return operation(all, _mm512_shuffle_epi32(all, _MM_PERM_CDAB));
}

// Four blocks together, to the bits of quantise_block: reductions are what it waits for.
PF_INLINE void quantise_four(const float *x, int8_t *codes, float *scale, float *sum) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), first_of_quarters = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    __m512i most[4], totals[4];
    for (int b = 0; b < 4; b++) {
        const __m512i left = _mm512_loadu_si512(x + b * pf::BLOCK), right = _mm512_loadu_si512(x + b * pf::BLOCK + 16);
        most[b] = _mm512_max_epi32(_mm512_and_si512(left, magnitude), _mm512_and_si512(right, magnitude));
    }
    const __m512i reduced = reduce_four(most, [](__m512i a, __m512i b) { return _mm512_max_epi32(a, b); });
    const __m128 peaks = _mm512_castps512_ps128(_mm512_castsi512_ps(_mm512_permutexvar_epi32(first_of_quarters, reduced)));
    const __m128 scales = _mm_div_ps(peaks, _mm_set1_ps(127));
    const __mmask8 counts = _mm_cmp_ps_mask(peaks, _mm_set1_ps(TINY), _CMP_GT_OQ);
    const __m512 inverses = _mm512_castps128_ps512(_mm_maskz_div_ps(counts, _mm_set1_ps(127), peaks));
    for (int b = 0; b < 4; b++) {
        const __m512 inverse = _mm512_permutexvar_ps(_mm512_set1_epi32(b), inverses);
        const __m512i left = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + b * pf::BLOCK), inverse));
        const __m512i right = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + b * pf::BLOCK + 16), inverse));
        totals[b] = _mm512_add_epi32(left, right);
        _mm_storeu_si128((__m128i *)(codes + b * pf::BLOCK), _mm512_cvtsepi32_epi8(left));
        _mm_storeu_si128((__m128i *)(codes + b * pf::BLOCK + 16), _mm512_cvtsepi32_epi8(right));
    }
    const __m512i total = reduce_four(totals, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); });
    const __m128i each = _mm512_castsi512_si128(_mm512_permutexvar_epi32(first_of_quarters, total));
    _mm_storeu_ps(scale, scales);
    _mm_storeu_ps(sum, _mm_mul_ps(scales, _mm_cvtepi32_ps(each)));
}

#endif

void quantise(const float *x, int n, int8_t *codes, float *scale, float *sum) {
    int b = 0;
#if defined(__AVX512VNNI__)
    for (; b + 4 <= n / pf::BLOCK; b += 4) quantise_four(x + b * pf::BLOCK, codes + b * pf::BLOCK, scale + b, sum + b);
#endif
    for (; b < n / pf::BLOCK; b++) {
        int total = quantise_block(x + b * pf::BLOCK, codes + b * pf::BLOCK, scale + b);
        sum[b] = scale[b] * (float)total;
    }
}

}  // namespace
