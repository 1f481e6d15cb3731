// F32: as many float32 lanes as the instruction set of this translation unit has, and their elementary operations.
//
// Products and sums are joined only where multiply_add says so (-ffp-contract=off), so that no choice of a compiler makes
// two copies of one computation differ. Everything here is in an unnamed namespace: kernels are compiled once per instruction set, and no function of one
// may be merged with that of another by the linker.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_FMA) && defined(__ARM_NEON)
#include <arm_neon.h>
#define PF_NEON
#endif

#define PF_INLINE static inline __attribute__((always_inline))

namespace {

PF_INLINE float half_to_float(uint16_t half) {
#if defined(__aarch64__)
    __fp16 value;
    memcpy(&value, &half, 2);
    return value;
#elif defined(__F16C__)
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
#else
    // Shift exponent and mantissa into place, then let one multiplication set the bias and make subnormals normal.
    uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    float value, scale = 0x1p112f;
    memcpy(&value, &magnitude, 4);
    value *= scale;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((half & 0x7c00) == 0x7c00) bits |= 0x7f800000;
    bits |= sign;
    memcpy(&value, &bits, 4);
    return value;
#endif
}

PF_INLINE uint16_t float_to_half(float value) {
#if defined(__aarch64__)
    __fp16 half = (__fp16)value;
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return bits;
#elif defined(__F16C__)
    return (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(value), 0));
#else
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00;                // NaN
    if (bits >= 0x477ff000) return sign | 0x7c00;               // rounds to infinity
    if (bits < 0x38800000) {                                    // subnormal: let the adder round
        float magnitude;
        memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, 4);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    bits += 0xfff + ((bits >> 13) & 1);                         // to nearest, ties to even
    return (uint16_t)(sign | ((bits - 0x38000000) >> 13));
#endif
}

// Of finite numbers: to the nearest, ties to even.
PF_INLINE uint16_t float_to_bfloat(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

PF_INLINE float bfloat_to_float(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

#if defined(__AVX512F__)

struct F32 {
    static const int width = 16;
    __m512 v;
};
PF_INLINE F32 load(const float *p) { return {_mm512_loadu_ps(p)}; }
PF_INLINE F32 load(const uint16_t *half) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)half))}; }
PF_INLINE F32 load(const int8_t *code) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)code)))};
}
PF_INLINE F32 load_bf16(const uint16_t *p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
PF_INLINE void store(float *p, F32 a) { _mm512_storeu_ps(p, a.v); }
PF_INLINE void store(uint16_t *half, F32 a) { _mm256_storeu_si256((__m256i *)half, _mm512_cvtps_ph(a.v, 0)); }
PF_INLINE F32 broadcast(float a) { return {_mm512_set1_ps(a)}; }
PF_INLINE F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
PF_INLINE F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
PF_INLINE F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
PF_INLINE F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
PF_INLINE F32 multiply_add(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
PF_INLINE F32 maximum(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }  // b when either is NaN
PF_INLINE F32 minimum(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
PF_INLINE F32 round_even(F32 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
PF_INLINE F32 times_power_of_two(F32 a, F32 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
PF_INLINE float sum(F32 a) { return _mm512_reduce_add_ps(a.v); }
PF_INLINE float largest(F32 a) { return _mm512_reduce_max_ps(a.v); }

#elif defined(__AVX2__)

struct F32 {
    static const int width = 8;
    __m256 v;
};
PF_INLINE F32 load(const float *p) { return {_mm256_loadu_ps(p)}; }
PF_INLINE F32 load(const uint16_t *half) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)half))}; }
PF_INLINE F32 load(const int8_t *code) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)code)))};
}
PF_INLINE F32 load_bf16(const uint16_t *p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
PF_INLINE void store(float *p, F32 a) { _mm256_storeu_ps(p, a.v); }
PF_INLINE void store(uint16_t *half, F32 a) { _mm_storeu_si128((__m128i *)half, _mm256_cvtps_ph(a.v, 0)); }
PF_INLINE F32 broadcast(float a) { return {_mm256_set1_ps(a)}; }
PF_INLINE F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
PF_INLINE F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
PF_INLINE F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
PF_INLINE F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
PF_INLINE F32 multiply_add(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
PF_INLINE F32 maximum(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }  // b when either is NaN
PF_INLINE F32 minimum(F32 a, F32 b) { return {_mm256_min_ps(a.v, b.v)}; }
PF_INLINE F32 round_even(F32 a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// Of lanes in [0.7, 1.5] and integral n in [-126, 126]: adds to the exponent.
PF_INLINE F32 times_power_of_two(F32 a, F32 n) {
    return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.v), _mm256_slli_epi32(_mm256_cvtps_epi32(n.v), 23)))};
}
PF_INLINE float sum(F32 a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
PF_INLINE float largest(F32 a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

#else

typedef float Lanes __attribute__((vector_size(16)));

struct F32 {  // the compiler makes SSE2, NEON or whatever there is of it
    static const int width = 4;
    Lanes v;
};
PF_INLINE F32 load(const float *p) {
    F32 a;
    memcpy(&a.v, p, sizeof a.v);
    return a;
}
PF_INLINE F32 load(const uint16_t *half) {
    return {Lanes{half_to_float(half[0]), half_to_float(half[1]), half_to_float(half[2]), half_to_float(half[3])}};
}
PF_INLINE F32 load(const int8_t *code) {
    return {Lanes{(float)code[0], (float)code[1], (float)code[2], (float)code[3]}};
}
PF_INLINE F32 load_bf16(const uint16_t *p) {
    return {Lanes{bfloat_to_float(p[0]), bfloat_to_float(p[1]), bfloat_to_float(p[2]), bfloat_to_float(p[3])}};
}
PF_INLINE void store(float *p, F32 a) { memcpy(p, &a.v, sizeof a.v); }
PF_INLINE void store(uint16_t *half, F32 a) {
    for (int i = 0; i < 4; i++) half[i] = float_to_half(a.v[i]);
}
PF_INLINE F32 broadcast(float a) { return {Lanes{a, a, a, a}}; }
PF_INLINE F32 operator+(F32 a, F32 b) { return {a.v + b.v}; }
PF_INLINE F32 operator-(F32 a, F32 b) { return {a.v - b.v}; }
PF_INLINE F32 operator*(F32 a, F32 b) { return {a.v * b.v}; }
PF_INLINE F32 operator/(F32 a, F32 b) { return {a.v / b.v}; }
#if defined(PF_NEON)
PF_INLINE F32 multiply_add(F32 a, F32 b, F32 c) {
    return {(Lanes)vfmaq_f32((float32x4_t)c.v, (float32x4_t)a.v, (float32x4_t)b.v)};
}
#else
PF_INLINE F32 multiply_add(F32 a, F32 b, F32 c) { return {a.v * b.v + c.v}; }
#endif
PF_INLINE F32 maximum(F32 a, F32 b) { return {a.v > b.v ? a.v : b.v}; }  // b when either is NaN
PF_INLINE F32 minimum(F32 a, F32 b) { return {a.v < b.v ? a.v : b.v}; }
PF_INLINE F32 round_even(F32 a) {
    return {Lanes{rintf(a.v[0]), rintf(a.v[1]), rintf(a.v[2]), rintf(a.v[3])}};
}
PF_INLINE F32 times_power_of_two(F32 a, F32 n) {
    for (int i = 0; i < 4; i++) a.v[i] = isnan(n.v[i]) ? a.v[i] : ldexpf(a.v[i], (int)n.v[i]);
    return a;
}
PF_INLINE float sum(F32 a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
PF_INLINE float largest(F32 a) { return fmaxf(fmaxf(a.v[0], a.v[1]), fmaxf(a.v[2], a.v[3])); }

#endif

// Rounds to bfloat16, halves away from zero. Pairs: a0 b0 a1 b1 …
#if defined(__AVX512F__)
PF_INLINE __m512i bf16_pairs(__m512 a, __m512 b) {
    const __m512i half = _mm512_set1_epi32(0x8000), high = _mm512_set1_epi32((int)0xffff0000);
    const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(a), half), 16);
    return _mm512_ternarylogic_epi32(_mm512_add_epi32(_mm512_castps_si512(b), half), high, low, 0xea);  // b & high | a
}
PF_INLINE void store_bf16_pairs(uint16_t *out, F32 a, F32 b) { _mm512_storeu_si512((void *)out, bf16_pairs(a.v, b.v)); }
PF_INLINE void store_bf16(uint16_t *out, F32 a) {
    const __m512i sum = _mm512_add_epi32(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x8000));
    _mm256_storeu_si256((__m256i *)out, _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16)));
}
#else
PF_INLINE void store_bf16(uint16_t *out, F32 a) {
    uint32_t bits[F32::width];
    memcpy(bits, &a, sizeof bits);
    for (int i = 0; i < F32::width; i++) out[i] = (uint16_t)((bits[i] + 0x8000) >> 16);
}
PF_INLINE void store_bf16_pairs(uint16_t *out, F32 a, F32 b) {
    uint16_t left[F32::width], right[F32::width];
    store_bf16(left, a);
    store_bf16(right, b);
    for (int i = 0; i < F32::width; i++) out[2 * i] = left[i], out[2 * i + 1] = right[i];
}
#endif

// 2^x for x up to 126, with a relative error below 2e-7; what is below -126 counts as -126, NaN stays. The polynomial of the
// fraction is Cephes' (exp2f).
PF_INLINE F32 exponential2(F32 x) {
    x = maximum(broadcast(-126), x);
    F32 n = round_even(x), r = x - n;
    F32 p = multiply_add(r, broadcast(1.535336188319500e-4f), broadcast(1.339887440266574e-3f));
    p = multiply_add(p, r, broadcast(9.618437357674640e-3f));
    p = multiply_add(p, r, broadcast(5.550332471162809e-2f));
    p = multiply_add(p, r, broadcast(2.402264791363012e-1f));
    p = multiply_add(p, r, broadcast(6.931472028550421e-1f));
    return times_power_of_two(multiply_add(p, r, broadcast(1)), n);
}

const float LOG2_E = 1.44269504088896341f;

}  // namespace
