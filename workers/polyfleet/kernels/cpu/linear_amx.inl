// Linears over quantised weights with AMX: a tile multiplies 32 codes of each of 16 weight rows by those of 16 rows
// entering and adds the products in 32 bits. Results are to the bit those of linear_avx512.inl, which the including file
// includes first and whose formats are used.
#include "tiles.h"

namespace {

const int AMX_ROWS = 16;
const int AMX_BLOCKS = 48;  // unpacked at a time: 24 KiB of codes
const int AMX_LEAD = 2, AMX_DEPTH = 4;  // products are computed so many blocks ahead; room for so many

// Tiles 0 and 1: sums of 16 x 16 numbers; 2 and 3: rows of 32 codes; 4 and 5: weights of 8 x 16 x 4 codes.
struct CodeTiles : TileConfig {
    CodeTiles() {
        for (int t = 0; t < 6; t++) row_bytes[t] = t / 2 == 1 ? 32 : 64, rows[t] = t / 2 == 2 ? 8 : 16;
    }
};

// Some blocks of a group, unpacked.
struct Unpacked {
    alignas(64) uint8_t codes[AMX_BLOCKS][8][64];
    __m512 scale[AMX_BLOCKS], minimum[AMX_BLOCKS];
};

// total += (scale * dot + minimum * sum) per row of a block. Addresses are stepped, for 32 of them would not stay in
// registers; the empty assembly keeps the compiler from working them out ahead.
PF_INLINE void add_dots(const int32_t (*dots)[pf::GROUP], __m512 scale, __m512 minimum, const Tile &tile, int b,
                        __m512 total[AMX_ROWS]) {
    const float *scales = tile.scale + b, *sums = tile.sum + b;
#pragma GCC unroll 16
    for (int n = 0; n < AMX_ROWS; n++) {
        __m512 s = _mm512_mul_ps(scale, _mm512_set1_ps(*scales));
        total[n] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(*sums), total[n]);
        total[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512((const void *)dots[n])), s, total[n]);
        scales += tile.blocks;
        sums += tile.blocks;
        __asm__("" : "+r"(scales), "+r"(sums));
    }
}

// Tiles are named by literals; two sets of them take turns.
#define MULTIPLY(SUM, ROWS, CODES)                 \
    _tile_zero(SUM);                               \
    _tile_loadd(ROWS, rows, stride);               \
    _tile_loadd(CODES, codes, 64);                 \
    _tile_dpbsud(SUM, ROWS, CODES);                \
    _tile_stored(SUM, dots, 64)

PF_INLINE void multiply(int turn, const int8_t *rows, int64_t stride, const uint8_t (*codes)[64],
                        int32_t (*dots)[pf::GROUP]) {
    if (turn % 2) {
        MULTIPLY(1, 3, 5);
    } else {
        MULTIPLY(0, 2, 4);
    }
}

// Adds blocks first ... first + count of 16 rows to what is in tile.out, or to nothing when `begin`.
PF_INLINE void amx_tile(const Unpacked &weight, int first, int count, const Tile &tile, bool begin, float unit) {
    alignas(64) int32_t dots[AMX_DEPTH][AMX_ROWS][pf::GROUP];
    __m512 total[AMX_ROWS];
#pragma GCC unroll 16
    for (int n = 0; n < AMX_ROWS; n++)
        total[n] = begin ? _mm512_setzero_ps() : _mm512_loadu_ps(tile.out + (int64_t)n * tile.out_stride);
    const int8_t *rows = tile.codes + (int64_t)first * pf::BLOCK;
    for (int b = -AMX_LEAD; b < count; b++) {
        const int next = b + AMX_LEAD;
        if (next < count) multiply(next, rows + next * pf::BLOCK, tile.stride, weight.codes[next], dots[next % AMX_DEPTH]);
        if (b >= 0) add_dots(dots[b % AMX_DEPTH], weight.scale[b], weight.minimum[b], tile, first + b, total);
    }
#pragma GCC unroll 16
    for (int n = 0; n < AMX_ROWS; n++)
        _mm512_storeu_ps(tile.out + (int64_t)n * tile.out_stride, _mm512_mul_ps(total[n], _mm512_set1_ps(unit)));
}

template <typename Format>
void linear_amx(const pf::Packed &weight, int group, const pf::Rows &rows, int first, int count, float *out,
                int out_stride) {
    const int whole = count / AMX_ROWS * AMX_ROWS;
    if (whole) {
        Unpacked unpacked;
        const CodeTiles config;
        _tile_loadconfig(static_cast<const TileConfig *>(&config));
        for (int begin = 0; begin < weight.blocks; begin += AMX_BLOCKS) {
            const int blocks = weight.blocks - begin < AMX_BLOCKS ? weight.blocks - begin : AMX_BLOCKS;
            for (int b = 0; b < blocks; b++) {
                __m512i codes[8];
                Format::unpack(weight, group, begin + b, codes, unpacked.scale[b], unpacked.minimum[b]);
                for (int j = 0; j < 8; j++) _mm512_store_si512((void *)unpacked.codes[b][j], codes[j]);
            }
            const float unit = begin + blocks == weight.blocks ? weight.unit : 1;
            for (int i = 0; i < whole; i += AMX_ROWS) {
                const int64_t row = first + i;
                const Tile tile = {0, false, rows.codes + row * rows.columns, rows.scale + row * weight.blocks,
                                   rows.sum + row * weight.blocks, rows.columns, weight.blocks,
                                   out + (int64_t)i * out_stride, out_stride};
                amx_tile(unpacked, begin, blocks, tile, begin == 0, unit);
            }
        }
        _tile_release();
    }
    linear_quantised<Format>(weight, group, rows, first + whole, count - whole, out + (int64_t)whole * out_stride, out_stride);
}

}  // namespace
