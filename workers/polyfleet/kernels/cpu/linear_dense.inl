// Linears over float weights, written once against F32: lanes are the group's 16 rows (outputs).
#include "kernels.h"
#include "simd.h"

namespace {

const int VECTORS = pf::GROUP / F32::width;
const int DENSE_TILE = VECTORS > 2 ? 2 : 10 / VECTORS;  // rows computed together: their sums fit the registers

struct Float32Columns {
    typedef float T;
    static const int step = 1;  // columns that lie side by side in a row's lane
};
struct Float16Columns {
    typedef uint16_t T;
    static const int step = 1;
};
struct BFloat16Columns {
    typedef uint16_t T;
    static const int step = 2;
};

PF_INLINE F32 load_column(Float32Columns, const float *w, int) { return load(w); }
PF_INLINE F32 load_column(Float16Columns, const uint16_t *w, int) { return load(w); }

// A 32-bit lane holds two columns; bfloat16 is the upper half of a float.
PF_INLINE F32 load_column(BFloat16Columns, const uint16_t *w, int column) {
    uint32_t lanes[F32::width];
    memcpy(lanes, w, sizeof lanes);
    for (int i = 0; i < F32::width; i++) lanes[i] = column ? lanes[i] & 0xffff0000 : lanes[i] << 16;
    F32 out;
    memcpy(&out, lanes, sizeof out);
    return out;
}

template <int N, typename C>
PF_INLINE void dense_tile(const typename C::T *w, int columns, const float *x, int stride, float *out, int out_stride) {
    F32 acc[N][VECTORS];
    for (int i = 0; i < N; i++)
        for (int v = 0; v < VECTORS; v++) acc[i][v] = broadcast(0);
    for (int k = 0; k < columns; k += C::step, w += pf::GROUP * C::step)
        for (int s = 0; s < C::step && k + s < columns; s++) {
            F32 weight[VECTORS];
            for (int v = 0; v < VECTORS; v++) weight[v] = load_column(C(), w + v * F32::width * C::step, s);
            for (int i = 0; i < N; i++) {
                F32 value = broadcast(x[(int64_t)i * stride + k + s]);
                for (int v = 0; v < VECTORS; v++) acc[i][v] = multiply_add(value, weight[v], acc[i][v]);
            }
        }
    for (int i = 0; i < N; i++)
        for (int v = 0; v < VECTORS; v++) store(out + (int64_t)i * out_stride + v * F32::width, acc[i][v]);
}

template <typename C>
void linear_dense(const pf::Packed &weight, int group, const pf::Rows &rows, int first, int count, float *out,
                  int out_stride) {
    const typename C::T *w = (const typename C::T *)weight.data +
                             (int64_t)group * pf::GROUP * pf::round_up(weight.columns, C::step);
    const float *x = rows.values + (int64_t)first * rows.stride;
    int i = 0;
    for (; i + DENSE_TILE <= count; i += DENSE_TILE)
        dense_tile<DENSE_TILE, C>(w, weight.columns, x + (int64_t)i * rows.stride, rows.stride,
                                  out + (int64_t)i * out_stride, out_stride);
    for (; i < count; i++)
        dense_tile<1, C>(w, weight.columns, x + (int64_t)i * rows.stride, rows.stride, out + (int64_t)i * out_stride,
                         out_stride);
}

}  // namespace
