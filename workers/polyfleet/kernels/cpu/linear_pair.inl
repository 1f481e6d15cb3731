// Linears of many rows over quantised weights with AVX-512 VNNI: two groups of outputs at a time, a panel of whose blocks is
// unpacked for all rows, into the first-level cache. There each number of a row that is loaded meets both. Results are to the
// bit those of linear_avx512.inl, which the including file includes first and whose formats are used.
#include "linear_each.inl"

namespace {

const int PAIR_ROWS = 4 * TILE_ROWS;  // fewer are faster with codes in registers
const int PAIR_BLOCKS = 24;           // of a panel: 27 KiB

// Some blocks of two groups, unpacked.
struct PairPanel {
    struct {
        alignas(64) uint8_t codes[8][2][64];
        float scale[2][pf::GROUP], minimum[2][pf::GROUP];
    } blocks[PAIR_BLOCKS];
};

template <typename Format>
PF_INLINE void unpack_pair(const pf::Outputs pair[2], int first, int count, PairPanel &panel) {
    for (int b = 0; b < count; b++)
        for (int k = 0; k < 2; k++) {
            __m512i codes[8];
            __m512 scale, minimum;
            Format::unpack(*pair[k].weight, pair[k].group, first + b, codes, scale, minimum);
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) _mm512_store_si512((void *)panel.blocks[b].codes[j][k], codes[j]);
            _mm512_store_ps(panel.blocks[b].scale[k], scale);
            _mm512_store_ps(panel.blocks[b].minimum[k], minimum);
        }
}

// dots[n][k] = block b of row n times that of group k.
template <int N>
PF_INLINE void multiply_pair(const uint8_t codes[8][2][64], const int8_t *x, int stride, __m512i dots[N][2]) {
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) dots[n][0] = dots[n][1] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        const __m512i first = load_codes(codes[j][0]), second = load_codes(codes[j][1]);
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            int32_t four;
            memcpy(&four, x + (int64_t)n * stride + 4 * j, 4);
            const __m512i numbers = _mm512_set1_epi32(four);
            dots[n][0] = _mm512_dpbusd_epi32(dots[n][0], first, numbers);
            dots[n][1] = _mm512_dpbusd_epi32(dots[n][1], second, numbers);
        }
    }
}

// A panel times N rows: added to what `out` has, or to nothing when `begin`. Registers hold the sums of one block; totals lie
// behind one another in memory meanwhile.
template <typename Format, int N>
PF_INLINE void run_pair(const PairPanel &panel, const pf::Outputs pair[2], int begin, int count, const Tile &tile, bool last) {
    alignas(64) float total[N][2][pf::GROUP];
    float *const out[2] = {tile.out, tile.out + (pair[1].out - pair[0].out)};
    const int apart = pair[0].weight == pair[1].weight ? 2 : 1;  // groups from one pair to the next
    for (int n = 0; n < N; n++)
        for (int k = 0; k < 2; k++)
            _mm512_store_ps(total[n][k], begin ? _mm512_loadu_ps(out[k] + (int64_t)n * tile.out_stride) : _mm512_setzero_ps());
    for (int b = begin; b < begin + count; b++) {
        for (int k = 0; k < 2 && N == TILE_ROWS; k++)
            Format::template fetch<TILE_ROWS>(*pair[k].weight, pair[k].group + apart - 1, b, tile);
        const auto &block = panel.blocks[b - begin];
        __m512i dots[N][2];
        multiply_pair<N>(block.codes, tile.codes + b * pf::BLOCK, tile.stride, dots);
        const __m512 scale[2] = {_mm512_load_ps(block.scale[0]), _mm512_load_ps(block.scale[1])};
        const __m512 minimum[2] = {_mm512_load_ps(block.minimum[0]), _mm512_load_ps(block.minimum[1])};
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            const __m512 s = _mm512_set1_ps(tile.scale[n * tile.blocks + b]), sum = _mm512_set1_ps(tile.sum[n * tile.blocks + b]);
#pragma GCC unroll 2
            for (int k = 0; k < 2; k++) {
                const __m512 t = _mm512_fmadd_ps(minimum[k], sum, _mm512_load_ps(total[n][k]));
                _mm512_store_ps(total[n][k], _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[n][k]), _mm512_mul_ps(scale[k], s), t));
            }
        }
    }
    for (int k = 0; k < 2; k++) {
        const __m512 unit = _mm512_set1_ps(last ? pair[k].weight->unit : 1);
        for (int n = 0; n < N; n++)
            _mm512_storeu_ps(out[k] + (int64_t)n * tile.out_stride, _mm512_mul_ps(_mm512_load_ps(total[n][k]), unit));
    }
}

template <typename Format, int N>
PF_INLINE void run_pair_rest(const PairPanel &panel, const pf::Outputs pair[2], int begin, int count, const Tile &tile,
                             bool last, int rows) {
    if (rows == N) return run_pair<Format, N>(panel, pair, begin, count, tile, last);
    if constexpr (N > 1) run_pair_rest<Format, N - 1>(panel, pair, begin, count, tile, last, rows);
}

template <typename Format>
void linear_pair(const pf::Outputs pair[2], const pf::Rows &rows, int first, int count, int out_stride) {
    PairPanel panel;
    const int blocks = pair[0].weight->blocks;
    for (int begin = 0; begin < blocks; begin += PAIR_BLOCKS) {
        const int some = blocks - begin < PAIR_BLOCKS ? blocks - begin : PAIR_BLOCKS;
        unpack_pair<Format>(pair, begin, some, panel);
        const bool last = begin + some == blocks;
        Tile tile = tile_of(rows, first, blocks, pair[0].out, out_stride);
        int left = count;
        for (; left >= TILE_ROWS; left -= TILE_ROWS, next_tile(tile)) {
            tile.last = left < 2 * TILE_ROWS;
            run_pair<Format, TILE_ROWS>(panel, pair, begin, some, tile, last);
        }
        run_pair_rest<Format, TILE_ROWS - 1>(panel, pair, begin, some, tile, last, left);
    }
}

// Many rows through two groups at a time, other ones through one.
template <typename Format>
void linear_pairs(const pf::Outputs *outputs, int num_outputs, const pf::Rows &rows, int first, int count, int out_stride) {
    int i = 0;
    for (; i + 2 <= num_outputs && count >= PAIR_ROWS; i += 2) linear_pair<Format>(outputs + i, rows, first, count, out_stride);
    each<linear_quantised<Format>>(outputs + i, num_outputs - i, rows, first, count, out_stride);
}

}  // namespace
