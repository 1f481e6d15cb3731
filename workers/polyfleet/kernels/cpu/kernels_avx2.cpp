// Kernels for x86-64 with AVX2, FMA and F16C.
#include "attention.inl"
#include "linear_avx2.inl"
#include "linear_dense.inl"
#include "linear_each.inl"
#include "rows.inl"
#include "low_rank.inl"
#include "scan.inl"

const pf::Kernels pf::avx2_kernels = {
    "avx2",
    0,
    norm,
    quantise,
    nullptr,
    {each<linear_dense<Float32Columns>>, each<linear_dense<Float16Columns>>, each<linear_dense<BFloat16Columns>>, each<linear_quantised<Q4>>, each<linear_quantised<Q8>>},
    {"avx2 float32", "avx2 float32", "avx2 float32", "avx2 int8", "avx2 int8"},
    silu_mul,
    rotate,
    store_half,
    store_codes,
    attend,
    combine,
    {low_rank_codes<Fours>, low_rank_codes<Eights>, low_rank_halves},
    find_largest,
    scan,
};
