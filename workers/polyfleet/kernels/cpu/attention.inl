// Attention over the paged cache, written once against F32: a softmax for each part of ATTENTION_PART positions, whose keys
// and values are met chunk by chunk; parts are merged in ascending order. What a row computes depends on its own position only.
//
// Keys lie [head_dim][position] in a block, so that lanes are positions and no dot product needs a horizontal sum;
// values lie [position][head_dim], so that lanes are columns of the output. "Vectors" below are query vectors: one
// per row and head.
#include "kernels.h"
#include "simd.h"

namespace {

const int TILE = 6;  // query vectors computed together
const int CHUNK = pf::ATTENTION_CHUNK;
const int STRIDE = pf::ATTENTION_STRIDE;  // of scores and scales: a part and what a last vector spills
const int KEY_STRIDE = pf::ATTENTION_KEY_STRIDE;  // of converted keys: a chunk and the same

// out[i][0 ... V lanes] (+)= sum over j < length of left[i][j] * right[j][...], for N vectors i.
template <int N, int V, bool ADD, typename T>
PF_INLINE void product(const float *left, int left_stride, const T *right, int right_stride, int length, float *out,
                       int out_stride) {
    F32 acc[N][V];
    for (int i = 0; i < N; i++)
        for (int v = 0; v < V; v++) acc[i][v] = ADD ? load(out + i * out_stride + v * F32::width) : broadcast(0);
    for (int j = 0; j < length; j++, right += right_stride) {
        F32 r[V];
        for (int v = 0; v < V; v++) r[v] = load(right + v * F32::width);
        for (int i = 0; i < N; i++) {
            F32 l = broadcast(left[i * left_stride + j]);
            for (int v = 0; v < V; v++) acc[i][v] = multiply_add(l, r[v], acc[i][v]);
        }
    }
    for (int i = 0; i < N; i++)
        for (int v = 0; v < V; v++) store(out + i * out_stride + v * F32::width, acc[i][v]);
}

// The same over `columns` columns, rounded up to whole vectors.
template <int N, bool ADD, typename T>
void product_columns(const float *left, int left_stride, const T *right, int right_stride, int length, int columns,
                     float *out, int out_stride) {
    int c = 0;
    for (; c + F32::width < columns; c += 2 * F32::width)
        product<N, 2, ADD>(left, left_stride, right + c, right_stride, length, out + c, out_stride);
    if (c < columns) product<N, 1, ADD>(left, left_stride, right + c, right_stride, length, out + c, out_stride);
}

template <bool ADD, typename T>
void product_vectors(int vectors, const float *left, int left_stride, const T *right, int right_stride, int length,
                     int columns, float *out, int out_stride) {
    int i = 0;
    for (; i + TILE <= vectors; i += TILE)
        product_columns<TILE, ADD>(left + i * left_stride, left_stride, right, right_stride, length, columns,
                                   out + i * out_stride, out_stride);
    left += i * left_stride, out += i * out_stride;
    switch (vectors - i) {
        case 5: return product_columns<5, ADD>(left, left_stride, right, right_stride, length, columns, out, out_stride);
        case 4: return product_columns<4, ADD>(left, left_stride, right, right_stride, length, columns, out, out_stride);
        case 3: return product_columns<3, ADD>(left, left_stride, right, right_stride, length, columns, out, out_stride);
        case 2: return product_columns<2, ADD>(left, left_stride, right, right_stride, length, columns, out, out_stride);
        case 1: return product_columns<1, ADD>(left, left_stride, right, right_stride, length, columns, out, out_stride);
    }
}

// The softmax over some positions, of each vector: values summed by weight, largest score, sum of weights. A vector that
// sees none of the positions has a sum of 0.
struct Softmax {
    float *sum, *peak, *mass;
};

struct State {  // of one unit of work, in its scratch
    int vectors, dim;  // dim is head_dim rounded up to GROUP
    Softmax total, part;
    float *query, *score, *keys, *values;
};

// The `number`th of those that lie behind each other in `memory`.
PF_INLINE Softmax place_softmax(const pf::Attention &a, float *memory, int number) {
    const int64_t vectors = pf::round_up(a.rows * a.heads, pf::GROUP), dim = pf::round_up(a.head_dim, pf::GROUP);
    float *sum = memory + number * (int64_t)pf::attention_partial(a.head_dim, a.rows * a.heads);
    return {sum, sum + vectors * dim, sum + vectors * dim + vectors};
}

PF_INLINE State make_state(const pf::Attention &a) {
    State s;
    s.vectors = a.rows * a.heads;
    s.dim = (int)pf::round_up(a.head_dim, pf::GROUP);
    const int64_t padded = pf::round_up(s.vectors, pf::GROUP);
    s.keys = a.scratch;
    s.values = s.keys + (int64_t)s.dim * KEY_STRIDE;
    s.query = s.values + (int64_t)s.dim * CHUNK;
    s.score = s.query + padded * s.dim;
    float *results = s.score + padded * STRIDE;
    s.total = place_softmax(a, a.partial ? a.partial : results, 0);
    s.part = place_softmax(a, results, 1);
    return s;
}

void scale_queries(const pf::Attention &a, const State &s) {
    for (int i = 0; i < s.vectors; i++) {
        const float *from = a.query + (int64_t)(i / a.heads) * a.query_stride + (i % a.heads) * a.head_dim;
        float *to = s.query + (int64_t)i * s.dim;
        for (int d = 0; d < a.head_dim; d++) to[d] = from[d] * (a.scale * LOG2_E);
        for (int d = a.head_dim; d < s.dim; d++) to[d] = 0;
    }
}

// The softmax over nothing.
void clear(const State &s, const Softmax &to) {
    memset(to.sum, 0, sizeof(float) * (size_t)s.vectors * (size_t)s.dim);
    for (int i = 0; i < s.vectors; i++) to.peak[i] = -INFINITY, to.mass[i] = 0;
}

// cap * tanh(score / cap) of n scores, which like the cap are logarithms to base 2: 1 - 2 / (1 + e^2x) is tanh x.
PF_INLINE void cap_scores(float *score, int n, float cap) {
    for (int p = 0; p < n; p += F32::width) {
        F32 e = exponential2(minimum(broadcast(126), load(score + p) * broadcast(2 * LOG2_E / cap)));
        store(score + p, broadcast(cap) - broadcast(2 * cap) / (broadcast(1) + e));
    }
}

// Turns scores (logarithms to base 2) of positions [begin, end) into weights, 1 of the largest one; those a row may not see become 0.
void softmax(const pf::Attention &a, const State &s, const Softmax &to, int begin, int end) {
    for (int i = 0; i < s.vectors; i++) {
        float *score = s.score + (int64_t)i * STRIDE;
        const int last = a.position + i / a.heads + 1, first = a.window ? last - a.window : 0;  // positions that it sees
        const int seen = (last < end ? last : end) - begin, hidden = first > begin ? first - begin : 0;
        if (seen <= hidden) {
            memset(score, 0, sizeof(float) * (size_t)(end - begin));
            to.peak[i] = -INFINITY, to.mass[i] = 0;
            continue;
        }
        const int from = hidden / F32::width * F32::width, lanes = (int)pf::round_up(seen, F32::width);
        if (a.cap) cap_scores(score + from, seen - from, a.cap * LOG2_E);
        for (int p = from; p < hidden; p++) score[p] = -INFINITY;
        for (int p = seen; p < lanes; p++) score[p] = -INFINITY;
        F32 best = broadcast(-INFINITY), mass = broadcast(0);
        for (int p = from; p < lanes; p += F32::width) best = maximum(best, load(score + p));
        const float peak = largest(best);
        for (int p = from; p < lanes; p += F32::width) {
            F32 e = exponential2(load(score + p) - broadcast(peak));
            store(score + p, e);
            mass = mass + e;
        }
        for (int p = seen; p < end - begin; p++) score[p] = 0;
        for (int p = 0; p < hidden; p++) score[p] = 0;
        to.peak[i] = peak, to.mass[i] = sum(mass);
    }
}

// Calls piece(offset behind first, length, block, position inside it) for each run of positions that lies within one block.
template <typename F>
PF_INLINE void for_blocks(const pf::Attention &a, int first, int count, F piece) {
    for (int done = 0; done < count;) {
        int position = first + done, inside = position % a.block_size;
        int length = a.block_size - inside < count - done ? a.block_size - inside : count - done;
        piece(done, length, (int64_t)a.table[position / a.block_size], inside);
        done += length;
    }
}

// The same with where its keys and values lie, halves or codes: piece(offset behind first, length, keys, values).
template <typename T, typename F>
PF_INLINE void for_pieces(const pf::Attention &a, int first, int count, F piece) {
    for_blocks(a, first, count, [&](int at, int length, int64_t block, int inside) {
        const T *keys = reinterpret_cast<const T *>(a.keys + block * a.key_block);
        const T *values = reinterpret_cast<const T *>(a.values + block * a.value_block);
        piece(at, length, keys + inside, values + (int64_t)inside * a.value_stride);
    });
}

// Multiplies what each vector has for a part's positions by the scales of codes there, `offset` behind each block of
// `blocks`. Scales of a part are put side by side first: what one piece spills, the next overwrites or nobody reads.
void scale_positions(const pf::Attention &a, const State &s, int first, int count, const uint8_t *blocks, int64_t size,
                     int64_t offset) {
    float scales[STRIDE];
    for_blocks(a, first, count, [&](int at, int length, int64_t block, int inside) {
        const uint16_t *from = reinterpret_cast<const uint16_t *>(blocks + block * size + offset) + inside;
        for (int p = 0; p < length; p += F32::width) store(scales + at + p, load_bf16(from + p));
    });
    for (int i = 0; i < s.vectors; i++) {
        float *row = s.score + (int64_t)i * STRIDE;
        for (int p = 0; p < count; p += F32::width) store(row + p, load(row + p) * load(scales + p));
    }
}

PF_INLINE void scale_scores(const pf::Attention &a, const State &s, int first, int count) {
    if (a.codes) scale_positions(a, s, first, count, a.keys, a.key_block, a.key_scales);
}

PF_INLINE void scale_weights(const pf::Attention &a, const State &s, int first, int count) {
    if (a.codes) scale_positions(a, s, first, count, a.values, a.value_block, a.value_scales);
}

// Few vectors: read the cache as it lies. A piece whose length is no multiple of the lanes spills scores behind it, which
// the next piece overwrites or softmax masks. Codes meet queries and weights as they are, and count times their scales
// before and behind the softmax.
template <typename T>
void attend_direct(const pf::Attention &a, const State &s, const Softmax &to, int begin, int end) {
    for_pieces<T>(a, begin, end - begin, [&](int at, int length, const T *keys, const T *) {
        product_vectors<false>(s.vectors, s.query, s.dim, keys, a.key_stride, a.head_dim, length, s.score + at, STRIDE);
    });
    scale_scores(a, s, begin, end - begin);
    softmax(a, s, to, begin, end);
    scale_weights(a, s, begin, end - begin);
    for_pieces<T>(a, begin, end - begin, [&](int at, int length, const T *, const T *values) {
        product_vectors<true>(s.vectors, s.score + at, STRIDE, values, a.value_stride, length, s.dim, to.sum, s.dim);
    });
}

// Calls chunk(first position, how many) for each chunk of a part.
template <typename F>
PF_INLINE void for_chunks(int begin, int end, F chunk) {
    for (int first = begin; first < end; first += CHUNK) chunk(first, end - first < CHUNK ? end - first : CHUNK);
}

// Rows of numbers, `stride` apart, as floats; whole vectors are read and written.
template <typename T>
PF_INLINE void convert_rows(const T *from, int64_t stride, int rows, int columns, float *to, int64_t to_stride) {
    for (; rows > 0; rows--, from += stride, to += to_stride)
        for (int c = 0; c < columns; c += F32::width) store(to + c, load(from + c));
}

// Many vectors share each chunk: convert it to float once.
template <typename T>
void attend_converted(const pf::Attention &a, const State &s, const Softmax &to, int begin, int end) {
    for_chunks(begin, end, [&](int first, int count) {
        for_pieces<T>(a, first, count, [&](int at, int length, const T *keys, const T *) {
            convert_rows(keys, a.key_stride, a.head_dim, length, s.keys + at, KEY_STRIDE);
        });
        product_vectors<false>(s.vectors, s.query, s.dim, s.keys, KEY_STRIDE, a.head_dim, count, s.score + (first - begin), STRIDE);
    });
    scale_scores(a, s, begin, end - begin);
    softmax(a, s, to, begin, end);
    scale_weights(a, s, begin, end - begin);
    for_chunks(begin, end, [&](int first, int count) {
        for_pieces<T>(a, first, count, [&](int at, int length, const T *, const T *values) {
            convert_rows(values, a.value_stride, length, s.dim, s.values + (int64_t)at * s.dim, s.dim);
        });
        product_vectors<true>(s.vectors, s.score + (first - begin), STRIDE, s.values, s.dim, count, s.dim, to.sum, s.dim);
    });
}

// Adds a later part to the total.
void merge(const State &s, const Softmax &total, const Softmax &part) {
    for (int i = 0; i < s.vectors; i++) {
        if (part.mass[i] == 0) continue;
        const float peak = total.peak[i] > part.peak[i] ? total.peak[i] : part.peak[i];
        const float old = exp2f(total.peak[i] - peak), added = exp2f(part.peak[i] - peak);
        F32 left = broadcast(old), right = broadcast(added);
        float *sum = total.sum + (int64_t)i * s.dim;
        const float *more = part.sum + (int64_t)i * s.dim;
        for (int d = 0; d < s.dim; d += F32::width)
            store(sum + d, multiply_add(load(more + d), right, load(sum + d) * left));
        total.peak[i] = peak;
        total.mass[i] = total.mass[i] * old + part.mass[i] * added;
    }
}

void finish(const pf::Attention &a, const State &s, const Softmax &total) {
    for (int i = 0; i < s.vectors; i++) {
        const float *from = total.sum + (int64_t)i * s.dim;
        float *to = a.out + (int64_t)(i / a.heads) * a.out_stride + (i % a.heads) * a.value_dim;
        const float sunk = a.sinks ? exp2f(a.sinks[i % a.heads] * LOG2_E - total.peak[i]) : 0;
        const float inverse = 1 / (total.mass[i] + sunk);
        for (int d = 0; d < a.value_dim; d++) to[d] = from[d] * inverse;
    }
}

// `compute(softmax, begin, end)` for each part.
template <typename F>
PF_INLINE void attend_parts(const pf::Attention &a, const State &s, F compute) {
    for (int begin = a.begin; begin < a.end; begin += pf::ATTENTION_PART) {
        const Softmax &to = begin == a.begin ? s.total : s.part;
        clear(s, to);
        if (a.window && begin + pf::ATTENTION_PART <= a.position + 1 - a.window) continue;  // no row sees any of it
        compute(to, begin, a.end - begin < pf::ATTENTION_PART ? a.end : begin + pf::ATTENTION_PART);
        if (begin > a.begin) merge(s, s.total, to);
    }
    if (!a.partial) finish(a, s, s.total);
}

void attend(const pf::Attention &a) {
    const State s = make_state(a);
    scale_queries(a, s);
    const auto compute = s.vectors > TILE ? (a.codes ? attend_converted<int8_t> : attend_converted<uint16_t>)
                                          : (a.codes ? attend_direct<int8_t> : attend_direct<uint16_t>);
    attend_parts(a, s, [&](const Softmax &to, int begin, int end) { compute(a, s, to, begin, end); });
}

void combine(const pf::Attention &a, int parts) {
    const State s = make_state(a);
    for (int part = 1; part < parts; part++) merge(s, s.total, place_softmax(a, a.partial, part));
    finish(a, s, s.total);
}

}  // namespace
