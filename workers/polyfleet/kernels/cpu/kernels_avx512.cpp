// Kernels for x86-64 with AVX-512 (F, BW, DQ, VL) and VNNI; compiled again with AVX512-BF16, and with that and AMX.
#include "attention.inl"
#include "linear_avx512.inl"
#include "linear_dense.inl"
#include "linear_each.inl"
#include "rows.inl"
#include "low_rank.inl"
#include "scan.inl"

#if defined(__AMX_INT8__)
#include "attention_wide.inl"
#include "linear_amx.inl"
#include "linear_bf16.inl"
#include "linear_wide.inl"
#define TABLE amx_kernels
#define NAME "amx"
#define BF16_LINEAR each<linear_bf16>
#define BF16_NAME "avx512 bf16"
#define ROUND_BF16 round_bf16
#define QUANTISED(FORMAT) each<linear_amx_or_wide<FORMAT>>
#define QUANTISED_NAME "amx int8, bf16 in wide rows"
#define WIDE WIDE_ROWS
#define ATTEND attend_wide
#elif defined(__AVX512BF16__)
#include "linear_bf16.inl"
#define TABLE avx512bf16_kernels
#define NAME "avx512bf16"
#define BF16_LINEAR each<linear_bf16>
#define BF16_NAME "avx512 bf16"
#define ROUND_BF16 round_bf16
#else
#define TABLE avx512_kernels
#define NAME "avx512"
#define BF16_LINEAR each<linear_dense<BFloat16Columns>>
#define BF16_NAME "avx512 float32"
#define ROUND_BF16 nullptr
#endif

#if !defined(QUANTISED)
#include "linear_pair.inl"
#define QUANTISED(FORMAT) linear_pairs<FORMAT>
#define QUANTISED_NAME "avx512 vnni int8"
#define WIDE 0
#define ATTEND attend
#endif

const pf::Kernels pf::TABLE = {
    NAME,
    WIDE,
    norm,
    quantise,
    ROUND_BF16,
    {each<linear_dense<Float32Columns>>, each<linear_dense<Float16Columns>>, BF16_LINEAR, QUANTISED(Q4), QUANTISED(Q8)},
    {"avx512 float32", "avx512 float32", BF16_NAME, QUANTISED_NAME, QUANTISED_NAME},
    silu_mul,
    rotate,
    store_half,
    store_codes,
    ATTEND,
    combine,
    {low_rank_codes<Fours>, low_rank_codes<Eights>, low_rank_halves},
    find_largest,
    scan,
};
