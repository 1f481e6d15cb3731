// What linears over quantised weights share: rows are taken in tiles, for each of which a group's codes are unpacked in
// registers as they stream by. The including file has defined TILE_ROWS, the rows of a full tile.
#include "kernels.h"
#include "simd.h"

namespace {

const int64_t FETCH_BYTES = 2560;

// What the rows of a tile enter with, and where its results go.
struct Tile {
    int number;
    bool last;  // of full ones
    const int8_t *codes;
    const float *scale, *sum;
    int stride, blocks;  // codes and blocks between rows
    float *out;
    int out_stride;
};

// Fetches memory ahead of a block of codes. Few rows: a little ahead in the stream. A full tile, whose passes over a
// group are bound by arithmetic: the same block of the next group, of which the first passes take a share each and the
// last one what is left, for a processor has few lines on their way at once and waits for room.
template <int N>
PF_INLINE void fetch_ahead(const void *block, int64_t size, const Tile &tile) {
    const int block_lines = 5, shares = 8 / TILE_ROWS + 1, lines = (block_lines + shares - 1) / shares;
    const char *at = (const char *)block + (N == TILE_ROWS ? tile.blocks * size : FETCH_BYTES);
    if (N < TILE_ROWS)
        for (int i = 0; i < block_lines; i++) __builtin_prefetch(at + 64 * i);
    else if (tile.number < shares)
        for (int i = 0; i < lines; i++) __builtin_prefetch(at + 64 * (tile.number * lines + i));
    if (N == TILE_ROWS && tile.last)
        for (int i = (tile.number + 1) * lines; i < block_lines; i++) __builtin_prefetch(at + 64 * i);
}

template <typename Format, int N>
PF_INLINE void run_rest(const pf::Packed &weight, int group, const Tile &tile, int count) {
    if (count == N) return Format::template run<N>(weight, group, tile);
    if constexpr (N > 1) run_rest<Format, N - 1>(weight, group, tile, count);
}

PF_INLINE Tile tile_of(const pf::Rows &rows, int first, int blocks, float *out, int out_stride) {
    return {0, false, rows.codes + (int64_t)first * rows.columns, rows.scale + (int64_t)first * blocks,
            rows.sum + (int64_t)first * blocks, rows.columns, blocks, out, out_stride};
}

PF_INLINE void next_tile(Tile &tile) {
    tile.number++;
    tile.codes += TILE_ROWS * tile.stride;
    tile.scale += TILE_ROWS * tile.blocks;
    tile.sum += TILE_ROWS * tile.blocks;
    tile.out += (int64_t)TILE_ROWS * tile.out_stride;
}

template <typename Format>
void linear_quantised(const pf::Packed &weight, int group, const pf::Rows &rows, int first, int count, float *out,
                      int out_stride) {
    Tile tile = tile_of(rows, first, weight.blocks, out, out_stride);
    for (; count >= TILE_ROWS; count -= TILE_ROWS, next_tile(tile)) {
        tile.last = count < 2 * TILE_ROWS;
        Format::template run<TILE_ROWS>(weight, group, tile);
    }
    run_rest<Format, TILE_ROWS - 1>(weight, group, tile, count);
}

}  // namespace
