// What an adapter adds to one row of a linear's results: y += up @ (down @ x), written once against F32.
#include "kernels.h"
#include "simd.h"

namespace {

// Sums of one group's 16 rows over `columns` of x, in several chains, since each product waits for the one before it.
template <typename T>
PF_INLINE void group_product(const T *w, int columns, const float *x, const float *scale, float *out) {
    const int vectors = pf::GROUP / F32::width, chains = 4;
    F32 acc[vectors][chains];
    for (int v = 0; v < vectors; v++)
        for (int c = 0; c < chains; c++) acc[v][c] = broadcast(0);
    int k = 0;
    for (; k + chains <= columns; k += chains)
        for (int c = 0; c < chains; c++) {
            const F32 value = broadcast(x[k + c]);
            const T *column = w + (int64_t)(k + c) * pf::GROUP;
            for (int v = 0; v < vectors; v++) acc[v][c] = multiply_add(value, load(column + v * F32::width), acc[v][c]);
        }
    for (; k < columns; k++)
        for (int v = 0; v < vectors; v++)
            acc[v][0] = multiply_add(broadcast(x[k]), load(w + (int64_t)k * pf::GROUP + v * F32::width), acc[v][0]);
    for (int v = 0; v < vectors; v++) {
        const F32 total = (acc[v][0] + acc[v][1]) + (acc[v][2] + acc[v][3]);
        store(out + v * F32::width, total * load(scale + v * F32::width));
    }
}

template <typename T>
void low_rank(const pf::LowRank &part, const float *x, float *narrow, float *y) {
    const T *down = (const T *)part.down, *up = (const T *)part.up;
    for (int first = 0; first < part.rank; first += pf::GROUP)
        group_product(down + (int64_t)first * part.columns, part.columns, x, part.down_scale + first, narrow + first);
    float tile[pf::GROUP];
    for (int first = 0; first < part.rows; first += pf::GROUP) {
        group_product(up + (int64_t)first * part.rank, part.rank, narrow, part.up_scale + first, tile);
        if (part.rows - first >= pf::GROUP)
            for (int r = 0; r < pf::GROUP; r += F32::width) store(y + first + r, load(y + first + r) + load(tile + r));
        else
            for (int r = first; r < part.rows; r++) y[r] += tile[r - first];
    }
}

}  // namespace
