// What an adapter adds to one row of a linear's results: y += up @ (down @ x), written once against F32 and, for codes,
// a product of a group's 16 rows in integers. Few rows share an adapter, so its matrices are read from memory: they lie in
// the order of their use, over all linears, and are fetched ahead.
//
// Behind linear_dense.inl and rows.inl, of which it has VECTORS and quantise.
#include "kernels.h"
#include "simd.h"

namespace {

const int LOW_RANK_AHEAD = 8192;  // bytes, into the second-level cache: the first has room for few lines on their way

PF_INLINE int32_t quad_of(const int8_t *x, int quad) {
    int32_t four;
    memcpy(&four, x + 4 * quad, 4);
    return four;
}

PF_INLINE void fetch_low_rank(const uint8_t *w, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(w + i + LOW_RANK_AHEAD, 0, 2);
}

// Codes of 8 and of 4 bits: see PfLowRank of abi.h. `dot` is the exact sums of 16 rows over so many quads of columns, at
// most a block's, where codes count as they are.
struct Eights {
    static const int bits = 8, zero = 128;
};
struct Fours {
    static const int bits = 4, zero = 8;
};

#if defined(__AVX512VNNI__)

PF_INLINE void dot(Eights, const uint8_t *w, int quads, const int8_t *x, F32 out[VECTORS]) {
    __m512i sums = _mm512_setzero_si512();
    for (int q = 0; q < quads; q++)
        sums = _mm512_dpbusd_epi32(sums, _mm512_loadu_si512((const void *)(w + 64 * q)), _mm512_set1_epi32(quad_of(x, q)));
    out[0] = {_mm512_cvtepi32_ps(sums)};
}

PF_INLINE void dot(Fours, const uint8_t *w, int quads, const int8_t *x, F32 out[VECTORS]) {
    const __m512i four = _mm512_set1_epi8(15);
    __m512i even = _mm512_setzero_si512(), odd = _mm512_setzero_si512();
    for (int q = 0; q < quads; q += 2) {
        const __m512i both = _mm512_loadu_si512((const void *)(w + 32 * q));
        even = _mm512_dpbusd_epi32(even, _mm512_and_si512(both, four), _mm512_set1_epi32(quad_of(x, q)));
        odd = _mm512_dpbusd_epi32(odd, _mm512_and_si512(_mm512_srli_epi16(both, 4), four), _mm512_set1_epi32(quad_of(x, q + 1)));
    }
    out[0] = {_mm512_cvtepi32_ps(_mm512_add_epi32(even, odd))};
}

#elif defined(__AVX2__)

PF_INLINE void dot(Eights, const uint8_t *w, int quads, const int8_t *x, F32 out[VECTORS]) {
    __m256i sums[VECTORS] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int q = 0; q < quads; q++) {
        const __m256i all = _mm256_set1_epi32(quad_of(x, q)), odd_x = _mm256_srai_epi16(all, 8);
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

// Sums of four products of codes below 16 fit 16 bits.
PF_INLINE void dot(Fours, const uint8_t *w, int quads, const int8_t *x, F32 out[VECTORS]) {
    const __m256i four = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    for (int v = 0; v < VECTORS; v++) {
        __m256i sums = _mm256_setzero_si256();
        for (int q = 0; q < quads; q += 2) {
            const __m256i both = _mm256_loadu_si256((const __m256i *)(w + 32 * q + 32 * v));
            const __m256i first = _mm256_and_si256(both, four), second = _mm256_and_si256(_mm256_srli_epi16(both, 4), four);
            const __m256i even = _mm256_maddubs_epi16(first, _mm256_set1_epi32(quad_of(x, q)));
            const __m256i odd = _mm256_maddubs_epi16(second, _mm256_set1_epi32(quad_of(x, q + 1)));
            sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_add_epi16(even, odd), ones));
        }
        out[v] = {_mm256_cvtepi32_ps(sums)};
    }
}

#else

PF_INLINE void floats_of(const int32_t sums[pf::GROUP], F32 out[VECTORS]) {
    float floats[pf::GROUP];
    for (int r = 0; r < pf::GROUP; r++) floats[r] = (float)sums[r];
    for (int v = 0; v < VECTORS; v++) out[v] = load(floats + v * F32::width);
}

PF_INLINE void dot(Eights, const uint8_t *w, int quads, const int8_t *x, F32 out[VECTORS]) {
    int32_t sums[pf::GROUP] = {};
    for (int q = 0; q < quads; q++)
        for (int i = 0; i < 64; i++) sums[i / 4] += w[64 * q + i] * x[4 * q + i % 4];
    floats_of(sums, out);
}

PF_INLINE void dot(Fours, const uint8_t *w, int quads, const int8_t *x, F32 out[VECTORS]) {
    int32_t sums[pf::GROUP] = {};
    for (int q = 0; q < quads; q++)
        for (int i = 0; i < 64; i++) sums[i / 4] += (w[64 * (q / 2) + i] >> 4 * (q % 2) & 15) * x[4 * q + i % 4];
    floats_of(sums, out);
}

#endif

// Sums of one group's 16 rows over `columns` of x.
template <typename Codes>
PF_INLINE void group_product(Codes codes, const uint8_t *w, int columns, const pf::Rows &x, F32 out[VECTORS]) {
    const int whole = pf::BLOCK / 4;  // quads
    F32 total[VECTORS], dots[VECTORS];
    float excess = 0;
    for (int v = 0; v < VECTORS; v++) total[v] = broadcast(0);
    for (int b = 0, left = pf::low_rank_columns(Codes::bits, columns) / 4; left > 0; b++, left -= whole) {
        const int quads = left < whole ? left : whole, bytes = quads * Codes::bits * 8;
        fetch_low_rank(w, bytes);
        if (quads == whole)
            dot(codes, w, whole, x.codes + b * pf::BLOCK, dots);
        else if (quads == whole / 2)
            dot(codes, w, whole / 2, x.codes + b * pf::BLOCK, dots);
        else
            dot(codes, w, quads, x.codes + b * pf::BLOCK, dots);
        for (int v = 0; v < VECTORS; v++) total[v] = multiply_add(dots[v], broadcast(x.scale[b]), total[v]);
        excess += x.sum[b];
        w += bytes;
    }
    const uint16_t *scale = (const uint16_t *)w;
    for (int v = 0; v < VECTORS; v++)
        out[v] = (total[v] - broadcast(Codes::zero * excess)) * load_bf16(scale + v * F32::width);
}

// The same of numbers in half precision, in several chains, since each product waits for the one before it.
struct Halves {
    static const int bits = 16;
};

PF_INLINE void group_product(Halves, const uint8_t *group, int columns, const pf::Rows &x, F32 out[VECTORS]) {
    const int chains = 4;
    const uint16_t *w = (const uint16_t *)group, *scale = w + (int64_t)columns * pf::GROUP;
    F32 acc[VECTORS][chains];
    for (int v = 0; v < VECTORS; v++)
        for (int c = 0; c < chains; c++) acc[v][c] = broadcast(0);
    int k = 0;
    for (; k + chains <= columns; k += chains)
        for (int c = 0; c < chains; c++) {
            const F32 value = broadcast(x.values[k + c]);
            const uint16_t *column = w + (int64_t)(k + c) * pf::GROUP;
            __builtin_prefetch((const char *)column + LOW_RANK_AHEAD, 0, 2);
            for (int v = 0; v < VECTORS; v++) acc[v][c] = multiply_add(value, load(column + v * F32::width), acc[v][c]);
        }
    for (; k < columns; k++)
        for (int v = 0; v < VECTORS; v++)
            acc[v][0] = multiply_add(broadcast(x.values[k]), load(w + (int64_t)k * pf::GROUP + v * F32::width), acc[v][0]);
    for (int v = 0; v < VECTORS; v++)
        out[v] = ((acc[v][0] + acc[v][1]) + (acc[v][2] + acc[v][3])) * load_bf16(scale + v * F32::width);
}

// out[rows, rounded up] = w @ x
template <typename Numbers>
PF_INLINE void narrow(Numbers numbers, const pf::LowRank &part, const pf::Rows &x, float *out) {
    const size_t bytes = pf::low_rank_bytes(Numbers::bits, part.columns);
    const uint8_t *w = part.down;
    for (int first = 0; first < part.rank; first += pf::GROUP, w += bytes) {
        F32 sums[VECTORS];
        group_product(numbers, w, part.columns, x, sums);
        for (int v = 0; v < VECTORS; v++) store(out + first + v * F32::width, sums[v]);
    }
}

// The first groups of `widen`, of no more columns than a block has: what there is of x stays in registers.
template <int quads, typename Codes>
PF_INLINE int widen_block(Codes codes, const pf::LowRank &part, const pf::Rows &x, float *y) {
    const int numbers = quads * Codes::bits * 8, bytes = numbers + pf::GROUP * (int)sizeof(uint16_t);
    const F32 unit = broadcast(x.scale[0]), excess = broadcast(-Codes::zero * x.sum[0]);
    const uint8_t *w = part.up;
    int8_t own[4 * quads];  // which results can't overwrite
    memcpy(own, x.codes, sizeof own);
    int first = 0;
    for (; first + pf::GROUP <= part.rows; first += pf::GROUP, w += bytes) {
        F32 dots[VECTORS];
        fetch_low_rank(w, bytes);
        dot(codes, w, quads, own, dots);
        for (int v = 0; v < VECTORS; v++) {
            float *out = y + first + v * F32::width;
            const F32 scale = load_bf16((const uint16_t *)(w + numbers) + v * F32::width);
            store(out, multiply_add(multiply_add(dots[v], unit, excess), scale, load(out)));
        }
    }
    return first;
}

template <typename Codes>
PF_INLINE int widen_groups(Codes codes, const pf::LowRank &part, const pf::Rows &x, float *y) {
    const int quads = pf::low_rank_columns(Codes::bits, part.rank) / 4;
    return quads == 4 ? widen_block<4>(codes, part, x, y) : quads == 8 ? widen_block<8>(codes, part, x, y) : 0;
}
PF_INLINE int widen_groups(Halves, const pf::LowRank &, const pf::Rows &, float *) { return 0; }

// y[rows] += w @ x
template <typename Numbers>
PF_INLINE void widen(Numbers numbers, const pf::LowRank &part, const pf::Rows &x, float *y) {
    const size_t bytes = pf::low_rank_bytes(Numbers::bits, part.rank);
    int first = widen_groups(numbers, part, x, y);
    const uint8_t *w = part.up + first / pf::GROUP * bytes;
    F32 sums[VECTORS];
    for (; first + pf::GROUP <= part.rows; first += pf::GROUP, w += bytes) {
        group_product(numbers, w, part.rank, x, sums);
        for (int v = 0; v < VECTORS; v++) store(y + first + v * F32::width, load(y + first + v * F32::width) + sums[v]);
    }
    if (first == part.rows) return;
    float last[pf::GROUP];
    group_product(numbers, w, part.rank, x, sums);
    for (int v = 0; v < VECTORS; v++) store(last + v * F32::width, sums[v]);
    for (int r = first; r < part.rows; r++) y[r] += last[r - first];
}

void low_rank_halves(const pf::LowRank &part, const pf::Rows &x, float *room, float *y) {
    narrow(Halves(), part, x, room);
    widen(Halves(), part, {room, 0, nullptr, nullptr, nullptr, 0, nullptr, 0}, y);
}

template <typename Codes>
void low_rank_codes(const pf::LowRank &part, const pf::Rows &x, float *room, float *y) {
    const int columns = (int)pf::round_up(part.rank, pf::BLOCK);
    float *scale = room + columns, *sum = scale + columns / pf::BLOCK;
    int8_t *codes = (int8_t *)(sum + columns / pf::BLOCK);
    memset(room, 0, (size_t)columns * sizeof(float));
    narrow(Codes(), part, x, room);
    quantise(room, columns, codes, scale, sum);
    widen(Codes(), part, {room, 0, codes, scale, sum, columns, nullptr, 0}, y);
}

}  // namespace
