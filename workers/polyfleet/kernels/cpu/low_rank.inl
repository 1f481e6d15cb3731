// What an adapter adds to one row of a linear's results: y += up @ (down @ x), written once against F32 and, for codes,
// a product of a group's 16 rows in integers. Few rows share an adapter, so its matrices are read from memory: scales and
// numbers lie in the order of their use, over all linears, and are fetched ahead.
//
// Behind linear_dense.inl and rows.inl, of which it has VECTORS and quantise.
#include "kernels.h"
#include "simd.h"

namespace {

const int LOW_RANK_AHEAD = 4096;  // bytes

// Sums of 16 rows over `quads` runs of four columns, of w [quad][16][4] and x [quad][4]; exact.
#if defined(__AVX512VNNI__)

PF_INLINE void dot_quads(const uint8_t *w, int quads, const int8_t *x, F32 out[VECTORS]) {
    __m512i sums = _mm512_setzero_si512();
    for (int q = 0; q < quads; q++) {
        int32_t four;
        memcpy(&four, x + 4 * q, 4);
        __builtin_prefetch(w + 64 * q + LOW_RANK_AHEAD);
        sums = _mm512_dpbusd_epi32(sums, _mm512_loadu_si512((const void *)(w + 64 * q)), _mm512_set1_epi32(four));
    }
    out[0] = {_mm512_cvtepi32_ps(sums)};
}

#elif defined(__AVX2__)

PF_INLINE void dot_quads(const uint8_t *w, int quads, const int8_t *x, F32 out[VECTORS]) {
    __m256i sums[VECTORS] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int q = 0; q < quads; q++) {
        int32_t four;
        memcpy(&four, x + 4 * q, 4);
        const __m256i all = _mm256_set1_epi32(four), odd_x = _mm256_srai_epi16(all, 8);
        const __m256i even_x = _mm256_srai_epi16(_mm256_slli_epi16(all, 8), 8);
        for (int v = 0; v < VECTORS; v++) {
            const __m256i codes = _mm256_loadu_si256((const __m256i *)(w + 64 * q + 32 * v));
            const __m256i even = _mm256_madd_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(255)), even_x);
            const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(codes, 8), odd_x);
            sums[v] = _mm256_add_epi32(sums[v], _mm256_add_epi32(even, odd));
        }
    }
    for (int v = 0; v < VECTORS; v++) out[v] = {_mm256_cvtepi32_ps(sums[v])};
}

#else

PF_INLINE void dot_quads(const uint8_t *w, int quads, const int8_t *x, F32 out[VECTORS]) {
    int32_t sums[pf::GROUP] = {};
    for (int q = 0; q < quads; q++)
        for (int r = 0; r < pf::GROUP; r++)
            for (int i = 0; i < 4; i++) sums[r] += w[64 * q + 4 * r + i] * x[4 * q + i];
    float floats[pf::GROUP];
    for (int r = 0; r < pf::GROUP; r++) floats[r] = (float)sums[r];
    for (int v = 0; v < VECTORS; v++) out[v] = load(floats + v * F32::width);
}

#endif

// A row in codes of blocks of 32, as linears read it.
struct Codes {
    int8_t *codes;
    float *scale, *sum;
};

// Sums of one group's 16 rows over `columns` of x, where codes count as they are, less 128.
PF_INLINE void group_product(const uint8_t *w, int columns, const Codes &x, const float *scale, float *out) {
    F32 total[VECTORS], dots[VECTORS];
    float excess = 0;
    for (int v = 0; v < VECTORS; v++) total[v] = broadcast(0);
    for (int b = 0, left = (columns + 3) / 4; left > 0; b++, left -= pf::BLOCK / 4) {
        if (left >= pf::BLOCK / 4)
            dot_quads(w, pf::BLOCK / 4, x.codes + b * pf::BLOCK, dots);
        else
            dot_quads(w, left, x.codes + b * pf::BLOCK, dots);
        for (int v = 0; v < VECTORS; v++) total[v] = multiply_add(dots[v], broadcast(x.scale[b]), total[v]);
        excess += x.sum[b];
        w += pf::BLOCK * pf::GROUP;
    }
    for (int v = 0; v < VECTORS; v++)
        store(out + v * F32::width, (total[v] - broadcast(128 * excess)) * load(scale + v * F32::width));
}

// The same of numbers in half precision, in several chains, since each product waits for the one before it.
PF_INLINE void group_product(const uint16_t *w, int columns, const float *x, const float *scale, float *out) {
    const int chains = 4;
    F32 acc[VECTORS][chains];
    for (int v = 0; v < VECTORS; v++)
        for (int c = 0; c < chains; c++) acc[v][c] = broadcast(0);
    int k = 0;
    for (; k + chains <= columns; k += chains)
        for (int c = 0; c < chains; c++) {
            const F32 value = broadcast(x[k + c]);
            const uint16_t *column = w + (int64_t)(k + c) * pf::GROUP;
            __builtin_prefetch((const char *)column + LOW_RANK_AHEAD);
            for (int v = 0; v < VECTORS; v++) acc[v][c] = multiply_add(value, load(column + v * F32::width), acc[v][c]);
        }
    for (; k < columns; k++)
        for (int v = 0; v < VECTORS; v++)
            acc[v][0] = multiply_add(broadcast(x[k]), load(w + (int64_t)k * pf::GROUP + v * F32::width), acc[v][0]);
    for (int v = 0; v < VECTORS; v++) {
        const F32 total = (acc[v][0] + acc[v][1]) + (acc[v][2] + acc[v][3]);
        store(out + v * F32::width, total * load(scale + v * F32::width));
    }
}

// out[rows, rounded up] = or, where that is `added`, out[rows] += w @ x; each row of w has `stored` columns.
template <typename T, typename X>
PF_INLINE void product(const uint8_t *w, int rows, int columns, int stored, const X &x, float *out, bool added) {
    float tile[pf::GROUP];
    const int64_t group_bytes = pf::GROUP * (int64_t)(sizeof(float) + (size_t)stored * sizeof(T));
    for (int first = 0; first < rows; first += pf::GROUP, w += group_bytes) {
        const float *scale = (const float *)w;
        const T *group = (const T *)(scale + pf::GROUP);
        __builtin_prefetch(w + LOW_RANK_AHEAD);
        if (!added) {
            group_product(group, columns, x, scale, out + first);
            continue;
        }
        group_product(group, columns, x, scale, tile);
        if (rows - first >= pf::GROUP)
            for (int r = 0; r < pf::GROUP; r += F32::width) store(out + first + r, load(out + first + r) + load(tile + r));
        else
            for (int r = first; r < rows; r++) out[r] += tile[r - first];
    }
}

void low_rank_halves(const pf::LowRank &part, const float *x, float *room, float *y) {
    product<uint16_t>(part.down, part.rank, part.columns, part.columns, x, room, false);
    product<uint16_t>(part.up, part.rows, part.rank, part.rank, room, y, true);
}

void low_rank_codes(const pf::LowRank &part, const float *x, float *room, float *y) {
    const int narrow = (int)pf::round_up(part.rank, pf::BLOCK), longest = narrow > part.columns ? narrow : part.columns;
    const int stored = (int)pf::round_up(part.rank, 4);
    float *scale = room + narrow;
    const Codes codes = {(int8_t *)(scale + 2 * (longest / pf::BLOCK)), scale, scale + longest / pf::BLOCK};
    memset(room, 0, (size_t)narrow * sizeof(float));
    quantise(x, part.columns, codes.codes, codes.scale, codes.sum);
    product<uint8_t>(part.down, part.rank, part.columns, part.columns, codes, room, false);
    quantise(room, narrow, codes.codes, codes.scale, codes.sum);
    product<uint8_t>(part.up, part.rows, part.rank, stored, codes, y, true);
}

}  // namespace
