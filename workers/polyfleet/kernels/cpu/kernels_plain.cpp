// Kernels for any machine.
#include "attention.inl"
#include "linear_dense.inl"
#include "linear_each.inl"
#include "linear_plain.inl"
#include "rows.inl"
#include "low_rank.inl"
#include "scan.inl"

const pf::Kernels pf::plain_kernels = {
    "plain",
    0,
    norm,
    quantise,
    nullptr,
    {each<linear_dense<Float32Columns>>, each<linear_dense<Float16Columns>>, each<linear_dense<BFloat16Columns>>, each<linear_q4>, each<linear_q8>},
    {"plain float32", "plain float32", "plain float32", "plain int8", "plain int8"},
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
