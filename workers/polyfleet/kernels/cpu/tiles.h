// AMX's tile instructions; compiled without AMX, plain C++ of the same meaning, for tests on machines without it.
#pragma once

#include <stdint.h>

// What ldtilecfg reads. Tile t has rows[t] rows of row_bytes[t] bytes.
struct TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

#if !defined(__AMX_TILE__)

#include <math.h>
#include <string.h>

struct EmulatedTiles {
    TileConfig config;
    uint8_t data[8][16][64];
};

static thread_local EmulatedTiles emulated;

static inline float emulated_bfloat(const uint8_t *p) {
    uint32_t bits = (uint32_t)(p[0] | p[1] << 8) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline void _tile_loadconfig(const void *config) { memcpy(&emulated.config, config, sizeof(TileConfig)); }
static inline void _tile_release() { emulated.config = TileConfig(); }
static inline void _tile_zero(int t) { memset(emulated.data[t], 0, sizeof emulated.data[t]); }
static inline void _tile_loadd(int t, const void *base, int64_t stride) {
    _tile_zero(t);
    for (int r = 0; r < emulated.config.rows[t]; r++)
        memcpy(emulated.data[t][r], (const char *)base + r * stride, emulated.config.row_bytes[t]);
}
static inline void _tile_stored(int t, void *base, int64_t stride) {
    for (int r = 0; r < emulated.config.rows[t]; r++)
        memcpy((char *)base + r * stride, emulated.data[t][r], emulated.config.row_bytes[t]);
}

template <typename Number, typename Product>
static inline void emulated_multiply(int c, int a, int b, Product product) {
    const TileConfig &config = emulated.config;
    for (int m = 0; m < config.rows[a]; m++)
        for (int k = 0; k < config.row_bytes[a] / 4; k++)
            for (int n = 0; n < config.row_bytes[b] / 4; n++) {
                Number sum;
                memcpy(&sum, &emulated.data[c][m][4 * n], 4);
                sum = product(sum, &emulated.data[a][m][4 * k], &emulated.data[b][k][4 * n]);
                memcpy(&emulated.data[c][m][4 * n], &sum, 4);
            }
}

static inline void _tile_dpbsud(int c, int a, int b) {
    emulated_multiply<int32_t>(c, a, b, [](int32_t sum, const uint8_t *x, const uint8_t *y) {
        for (int i = 0; i < 4; i++) sum += (int32_t)(int8_t)x[i] * (int32_t)y[i];
        return sum;
    });
}
static inline void _tile_dpbf16ps(int c, int a, int b) {
    emulated_multiply<float>(c, a, b, [](float sum, const uint8_t *x, const uint8_t *y) {
        for (int i = 0; i < 2; i++) sum = fmaf(emulated_bfloat(x + 2 * i), emulated_bfloat(y + 2 * i), sum);
        return sum;
    });
}

#endif
