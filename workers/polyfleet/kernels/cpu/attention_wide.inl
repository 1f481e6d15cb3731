// Attention of wide rows with AMX: queries, keys, weights and values meet as bfloat16, sums and softmax are float32.
// The structure is that of attend_converted in attention.inl, which the including file includes first.
#include "tiles.h"

namespace {

const int TILE_COLUMNS = 32;  // of bfloat16 in a row of a tile
const int TILE_NUMBERS = 16 * TILE_COLUMNS;

// Tiles 0 to 3: sums; 4: left; 5 and 6: right.
struct AttentionTiles : TileConfig {
    AttentionTiles() {
        for (int t = 0; t < 7; t++) row_bytes[t] = 64, rows[t] = 16;
    }
};

PF_INLINE const uint16_t *halves(const float *p) { return (const uint16_t *)(const void *)p; }
PF_INLINE uint16_t *halves(float *p) { return (uint16_t *)(void *)p; }

// Rounds n floats, a multiple of 16, to as many bfloat16 at the same place.
PF_INLINE void round_in_place(float *p, int n) {
    for (int i = 0; i < n; i += F32::width) store_bf16(halves(p) + i, load(p + i));
}

// Keys of a chunk as right tiles [head_dim / 32][position / 16] of [dim / 2][position][2]; bfloat16 holds codes exactly.
template <typename T>
void convert_keys(const pf::Attention &a, int first, int count, uint16_t *to) {
    for_pieces<T>(a, first, count, [&](int at, int length, const T *keys, const T *) {
        for (int p = 0; p < length; p += 16)
            for (int d = 0; d < a.head_dim; d += 2) {
                const T *key = keys + (int64_t)d * a.key_stride + p;
                uint16_t *out = to + (d / 32 * (CHUNK / 16) + (at + p) / 16) * TILE_NUMBERS + d % 32 / 2 * TILE_COLUMNS;
                for (int i = 0; i < 16; i += F32::width)
                    store_bf16_pairs(out + 2 * i, load(key + i), load(key + a.key_stride + i));
            }
    });
}

// Values as right tiles [position / 32][head_dim / 16] of [position / 2][dim][2]; zeros behind the last position.
template <typename T>
void convert_values(const pf::Attention &a, int first, int count, uint16_t *to) {
    const int groups = a.head_dim / 16;
    auto out = [&](int p, int d) { return to + (p / 32 * groups + d / 16) * TILE_NUMBERS + p % 32 / 2 * TILE_COLUMNS; };
    for_pieces<T>(a, first, count, [&](int at, int length, const T *, const T *values) {
        for (int p = 0; p < length; p += 2)
            for (int d = 0; d < a.head_dim; d += 16)
                for (int i = 0; i < 16; i += F32::width) {
                    const T *value = values + (int64_t)p * a.value_stride + d + i;
                    const F32 next = p + 1 < length ? load(value + a.value_stride) : broadcast(0);
                    store_bf16_pairs(out(at + p, d) + 2 * i, load(value), next);
                }
    });
    for (int p = (count + 1) / 2 * 2; p < CHUNK; p += 2)
        for (int d = 0; d < a.head_dim; d += 16) memset(out(p, d), 0, TILE_COLUMNS * sizeof(uint16_t));
}

// Scores of 16 vectors and the chunk's positions.
PF_INLINE void score_tiles(const float *query, int dim, const uint16_t *keys, float *score) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int d = 0; d < dim; d += 32, keys += CHUNK / 16 * TILE_NUMBERS) {
        _tile_loadd(4, halves(query) + d, dim * 4);
        _tile_loadd(5, keys, 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, keys + TILE_NUMBERS, 64);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(5, keys + 2 * TILE_NUMBERS, 64);
        _tile_dpbf16ps(2, 4, 5);
        _tile_loadd(6, keys + 3 * TILE_NUMBERS, 64);
        _tile_dpbf16ps(3, 4, 6);
    }
    _tile_stored(0, score, STRIDE * 4);
    _tile_stored(1, score + 16, STRIDE * 4);
    _tile_stored(2, score + 32, STRIDE * 4);
    _tile_stored(3, score + 48, STRIDE * 4);
}

// Adds the chunk's weighted values to the sums of 16 vectors, 32 columns at a time.
PF_INLINE void value_tiles(const uint16_t *score, const uint16_t *values, int dim, float *sum) {
    for (int d = 0; d < dim; d += 32) {
        _tile_loadd(0, sum + d, dim * 4);
        _tile_loadd(1, sum + d + 16, dim * 4);
        for (int p = 0; p < CHUNK; p += 32) {
            const uint16_t *right = values + (p / 32 * (dim / 16) + d / 16) * TILE_NUMBERS;
            _tile_loadd(4, score + p, STRIDE * 4);
            _tile_loadd(5, right, 64);
            _tile_dpbf16ps(0, 4, 5);
            _tile_loadd(6, right + TILE_NUMBERS, 64);
            _tile_dpbf16ps(1, 4, 6);
        }
        _tile_stored(0, sum + d, dim * 4);
        _tile_stored(1, sum + d + 16, dim * 4);
    }
}

// Rows behind the last vector are computed too, of whatever lies there; nothing reads them.
template <typename T>
void attend_tiles(const pf::Attention &a, const State &s, const Softmax &to, int begin, int end) {
    uint16_t *keys = halves(s.keys), *values = halves(s.values);
    for_chunks(begin, end, [&](int first, int count) {
        convert_keys<T>(a, first, count, keys);
        for (int i = 0; i < s.vectors; i += 16)
            score_tiles(s.query + (int64_t)i * s.dim, s.dim, keys, s.score + (int64_t)i * STRIDE + (first - begin));
    });
    scale_scores(a, s, begin, end - begin);
    softmax(a, s, to, begin, end);
    scale_weights(a, s, begin, end - begin);
    const int whole = (int)pf::round_up(end - begin, CHUNK);
    for (int i = 0; i < s.vectors; i++) {
        float *score = s.score + (int64_t)i * STRIDE;
        for (int p = end - begin; p < whole; p++) score[p] = 0;
        round_in_place(score, whole);
    }
    for_chunks(begin, end, [&](int first, int count) {
        convert_values<T>(a, first, count, values);
        for (int i = 0; i < s.vectors; i += 16)
            value_tiles(halves(s.score + (int64_t)i * STRIDE) + (first - begin), values, s.dim, to.sum + (int64_t)i * s.dim);
    });
}

void attend_wide(const pf::Attention &a) {
    const bool fits = a.head_dim % 32 == 0 && a.block_size % 16 == 0;
    if (!a.wide || !fits || a.rows * a.heads < 16) return attend(a);
    const State s = make_state(a);
    scale_queries(a, s);
    for (int i = 0; i < s.vectors; i++) round_in_place(s.query + (int64_t)i * s.dim, s.dim);
    const AttentionTiles config;
    _tile_loadconfig(static_cast<const TileConfig *>(&config));
    const auto compute = a.codes ? attend_tiles<int8_t> : attend_tiles<uint16_t>;
    attend_parts(a, s, [&](const Softmax &to, int begin, int end) { compute(a, s, to, begin, end); });
    _tile_release();
}

}  // namespace
