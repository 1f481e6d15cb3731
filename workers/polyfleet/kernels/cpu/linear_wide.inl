// Linears of wide rows with AMX: quantised weights are converted to bfloat16 once for all rows, and a tile multiplies
// two columns of 16 weight rows by those of 16 rows entering, over 32 columns, and adds the products in float32.
#include "tiles.h"

namespace {

const int WIDE_ROWS = 128;   // from so many on, converting pays
const int WIDE_TILES = 4;    // of 16 rows, that share each tile of weights
const int WIDE_BLOCKS = 48;  // converted at a time: 48 KiB

// Tiles 0 to 3: sums; 4: weights; 5 and 6: rows.
struct WideTiles : TileConfig {
    WideTiles() {
        for (int t = 0; t < 7; t++) row_bytes[t] = 64, rows[t] = 16;
    }
};

// Blocks as tiles read them: [column / 2][weight row][2].
struct Panel {
    alignas(64) uint16_t numbers[WIDE_BLOCKS][pf::BLOCK / 2][2 * pf::GROUP];
};

// The codes at byte I of each lane, as numbers: a code placed eight bits up in 2^15 is 2^15 + code.
template <int I>
PF_INLINE __m512 weights_at(__m512i codes, __m512 scale, __m512 minimum) {
    const __m512i mask = _mm512_set1_epi32(0xff00), magic = _mm512_set1_epi32(0x47000000);
    const __m512i shifted = I == 0 ? _mm512_slli_epi32(codes, 8) : I == 1 ? codes : _mm512_srli_epi32(codes, 8 * I - 8);
    const __m512i number = _mm512_ternarylogic_epi32(shifted, mask, magic, 0xea);  // shifted & mask | magic
    return _mm512_fmadd_ps(scale, _mm512_castsi512_ps(number), minimum);
}

template <typename Format>
PF_INLINE void convert_block(const pf::Packed &weight, int group, int b, uint16_t (*to)[2 * pf::GROUP]) {
    __m512i codes[8];
    __m512 scale, minimum;
    Format::unpack(weight, group, b, codes, scale, minimum);
    scale = _mm512_mul_ps(scale, _mm512_set1_ps(weight.unit));
    minimum = _mm512_fmadd_ps(minimum, _mm512_set1_ps(weight.unit), _mm512_mul_ps(scale, _mm512_set1_ps(-32768)));
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        _mm512_store_si512((void *)to[2 * j], bf16_pairs(weights_at<0>(codes[j], scale, minimum),
                                                         weights_at<1>(codes[j], scale, minimum)));
        _mm512_store_si512((void *)to[2 * j + 1], bf16_pairs(weights_at<2>(codes[j], scale, minimum),
                                                             weights_at<3>(codes[j], scale, minimum)));
    }
}

// Sums of up to four tiles of rows begin at nothing, or at `out`.
template <int TILES>
PF_INLINE void begin_sums(const float *out, int64_t bytes, bool fresh) {
    if (fresh) {
        _tile_zero(0);
        if constexpr (TILES > 1) _tile_zero(1);
        if constexpr (TILES > 2) _tile_zero(2);
        if constexpr (TILES > 3) _tile_zero(3);
    } else {
        _tile_loadd(0, out, bytes);
        if constexpr (TILES > 1) _tile_loadd(1, (const char *)out + 16 * bytes, bytes);
        if constexpr (TILES > 2) _tile_loadd(2, (const char *)out + 32 * bytes, bytes);
        if constexpr (TILES > 3) _tile_loadd(3, (const char *)out + 48 * bytes, bytes);
    }
}

template <int TILES>
PF_INLINE void add_block(const uint16_t (*weights)[2 * pf::GROUP], const uint16_t *rows, int64_t bytes) {
    _tile_loadd(4, weights, 64);
    _tile_loadd(5, rows, bytes);
    _tile_dpbf16ps(0, 5, 4);
    if constexpr (TILES > 1) {
        _tile_loadd(6, (const char *)rows + 16 * bytes, bytes);
        _tile_dpbf16ps(1, 6, 4);
    }
    if constexpr (TILES > 2) {
        _tile_loadd(5, (const char *)rows + 32 * bytes, bytes);
        _tile_dpbf16ps(2, 5, 4);
    }
    if constexpr (TILES > 3) {
        _tile_loadd(6, (const char *)rows + 48 * bytes, bytes);
        _tile_dpbf16ps(3, 6, 4);
    }
}

template <int TILES>
PF_INLINE void end_sums(float *out, int64_t bytes) {
    _tile_stored(0, out, bytes);
    if constexpr (TILES > 1) _tile_stored(1, (char *)out + 16 * bytes, bytes);
    if constexpr (TILES > 2) _tile_stored(2, (char *)out + 32 * bytes, bytes);
    if constexpr (TILES > 3) _tile_stored(3, (char *)out + 48 * bytes, bytes);
}

// Some blocks of a group for up to 64 rows. The first rows of a group have its blocks converted on the way, one ahead of
// their use, so that tiles multiply meanwhile.
template <typename Format, int TILES>
void wide_rows(const pf::Packed &weight, int group, int begin, int blocks, Panel &panel, bool convert,
               const uint16_t *rows, int64_t row_bytes, float *out, int64_t out_bytes) {
    begin_sums<TILES>(out, out_bytes, begin == 0);
    if (convert) {
        convert_block<Format>(weight, group, begin, panel.numbers[0]);
        for (int b = 0; b < blocks; b++) {
            if (b + 1 < blocks) convert_block<Format>(weight, group, begin + b + 1, panel.numbers[b + 1]);
            add_block<TILES>(panel.numbers[b], rows + b * pf::BLOCK, row_bytes);
        }
    } else {
        for (int b = 0; b < blocks; b++) add_block<TILES>(panel.numbers[b], rows + b * pf::BLOCK, row_bytes);
    }
    end_sums<TILES>(out, out_bytes);
}

template <typename Format>
PF_INLINE void wide_rows(int tiles, const pf::Packed &weight, int group, int begin, int blocks, Panel &panel,
                         bool convert, const uint16_t *rows, int64_t row_bytes, float *out, int64_t out_bytes) {
    switch (tiles) {
        case 1: return wide_rows<Format, 1>(weight, group, begin, blocks, panel, convert, rows, row_bytes, out, out_bytes);
        case 2: return wide_rows<Format, 2>(weight, group, begin, blocks, panel, convert, rows, row_bytes, out, out_bytes);
        case 3: return wide_rows<Format, 3>(weight, group, begin, blocks, panel, convert, rows, row_bytes, out, out_bytes);
        default: return wide_rows<Format, 4>(weight, group, begin, blocks, panel, convert, rows, row_bytes, out, out_bytes);
    }
}

// Results of rows behind the last whole tile go through memory of their own, for a tile is stored whole.
template <typename Format>
void linear_wide(const pf::Packed &weight, int group, const pf::Rows &rows, int first, int count, float *out,
                 int out_stride) {
    Panel panel;
    alignas(64) float last[16][pf::GROUP];
    const WideTiles config;
    _tile_loadconfig(static_cast<const TileConfig *>(&config));
    const int whole = count / 16 * 16;
    const int64_t row_bytes = 2 * (int64_t)rows.halves_stride, out_bytes = 4 * (int64_t)out_stride;
    for (int begin = 0; begin < weight.blocks; begin += WIDE_BLOCKS) {
        const int blocks = weight.blocks - begin < WIDE_BLOCKS ? weight.blocks - begin : WIDE_BLOCKS;
        const uint16_t *x = rows.halves + (int64_t)first * rows.halves_stride + begin * pf::BLOCK;
        for (int i = 0; i < whole; i += 16 * WIDE_TILES)
            wide_rows<Format>((whole - i) / 16, weight, group, begin, blocks, panel, i == 0,
                              x + (int64_t)i * rows.halves_stride, row_bytes, out + (int64_t)i * out_stride, out_bytes);
        if (whole < count)
            wide_rows<Format>(1, weight, group, begin, blocks, panel, whole == 0,
                              x + (int64_t)whole * rows.halves_stride, row_bytes, last[0], 64);
    }
    _tile_release();
    for (int i = whole; i < count; i++) memcpy(out + (int64_t)i * out_stride, last[i - whole], sizeof last[0]);
}

template <typename Format>
void linear_amx_or_wide(const pf::Packed &weight, int group, const pf::Rows &rows, int first, int count, float *out,
                        int out_stride) {
    (rows.codes ? linear_amx<Format> : linear_wide<Format>)(weight, group, rows, first, count, out, out_stride);
}

}  // namespace
