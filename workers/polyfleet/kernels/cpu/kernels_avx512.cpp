// Kernels for x86-64 with AVX-512 (F, BW, DQ, VL) and VNNI; compiled a second time with AVX512-BF16.
#include "attention.inl"
#include "linear_avx512.inl"
#include "linear_dense.inl"
#include "rows.inl"

#if defined(__AVX512BF16__)
#include "linear_bf16.inl"
#define TABLE avx512bf16_kernels
#define NAME "avx512bf16"
#define BF16_LINEAR linear_bf16
#define BF16_NAME "avx512 bf16"
#define ROUND_BF16 round_bf16
#else
#define TABLE avx512_kernels
#define NAME "avx512"
#define BF16_LINEAR linear_dense<BFloat16Columns>
#define BF16_NAME "avx512 float32"
#define ROUND_BF16 nullptr
#endif

const pf::Kernels pf::TABLE = {
    NAME,
    norm,
    quantise,
    ROUND_BF16,
    {linear_dense<Float32Columns>, linear_dense<Float16Columns>, BF16_LINEAR, linear_quantised<Q4>, linear_quantised<Q8>},
    {"avx512 float32", "avx512 float32", BF16_NAME, "avx512 vnni int8", "avx512 vnni int8"},
    silu_mul,
    rotate,
    store_half,
    attend,
    find_largest,
};
