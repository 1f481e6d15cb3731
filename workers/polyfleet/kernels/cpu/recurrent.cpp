// Ops with recurrent state: a short convolution, the gated delta rule (Yang et al., arXiv 2412.06464) and Mamba 2's
// recurrence (Dao and Gu, arXiv 2405.21060). A sequence's state lies in its slot; the first row of a sequence finds zeros there. Rows are computed one after the other, so that
// they come to the same bits however a prompt is cut.
#include <math.h>
#include <string.h>

#include <algorithm>

#include "executor.h"

namespace pf {

namespace {

const int CONV_COLUMNS = 256;  // of a unit of work

// 1 / length of a vector, whose length counts as no less than a thousandth.
float inverse_length(const float *x, int n) {
    float sum = 1e-6f;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return 1 / sqrtf(sum);
}

float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

// One row of one head: `state` is [keys][values], all numbers beside the vectors are of this row.
void advance(float *state, const float *q, const float *k, const float *v, int keys, int values, float decay, float rate,
             float *change, float *y) {
    const float q_factor = inverse_length(q, keys) / sqrtf((float)keys), k_factor = inverse_length(k, keys);
    memset(change, 0, (size_t)values * sizeof(float));
    memset(y, 0, (size_t)values * sizeof(float));
    for (int i = 0; i < keys; i++) {
        float *line = state + (int64_t)i * values;
        const float key = k[i] * k_factor;
        for (int j = 0; j < values; j++) {
            line[j] *= decay;
            change[j] += line[j] * key;
        }
    }
    for (int j = 0; j < values; j++) change[j] = (v[j] - change[j]) * rate;
    for (int i = 0; i < keys; i++) {
        float *line = state + (int64_t)i * values;
        const float key = k[i] * k_factor, query = q[i] * q_factor;
        for (int j = 0; j < values; j++) {
            line[j] += key * change[j];
            y[j] += line[j] * query;
        }
    }
}

// The same of Mamba 2's recurrence, by the row's step.
void scan(float *state, const float *b, const float *c, const float *x, int keys, int values, float decay, float step, float skip,
          float *y) {
    for (int j = 0; j < values; j++) y[j] = skip * x[j];
    for (int i = 0; i < keys; i++) {
        float *line = state + (int64_t)i * values;
        const float entering = b[i] * step, leaving = c[i];
        for (int j = 0; j < values; j++) {
            line[j] = line[j] * decay + entering * x[j];
            y[j] += line[j] * leaving;
        }
    }
}

}  // namespace

float *Executor::state_of(const Stage &stage, int sequence) {
    return states_.as<float>() + stage.state + state_.in->slots[sequence] * states_at_.back();
}

// A unit of work is some columns of one sequence. Columns of a state lie side by side: [tap][column].
void Executor::causal_conv(const Stage &stage, std::atomic<int> &claimed, int thread) {
    const PfStage &at = stage.at;
    const int columns = widths_[(size_t)at.input], past = at.width - 1, parts = (columns + CONV_COLUMNS - 1) / CONV_COLUMNS;
    const int units = state_.in->num_sequences * parts;
    std::vector<float> &seen = scratch_[(size_t)thread].recurrent;
    seen.resize((size_t)(at.width * CONV_COLUMNS));
    for (int unit; (unit = claimed.fetch_add(1, std::memory_order_relaxed)) < units;) {
        const int sequence = unit / parts, begin = unit % parts * CONV_COLUMNS, count = std::min(CONV_COLUMNS, columns - begin);
        const int first = state_.in->row_starts[sequence], end = state_.in->row_starts[sequence + 1];
        float *state = state_of(stage, sequence) + begin;
        for (int tap = 0; tap < past; tap++)
            for (int i = 0; i < count; i++)
                seen[(size_t)(tap * CONV_COLUMNS + i)] = state_.position[(size_t)first] ? state[(int64_t)tap * columns + i] : 0;
        for (int r = first; r < end; r++) {
            const float *x = row(at.input, r) + begin;
            float *y = row(at.output, r) + begin;
            for (int i = 0; i < count; i++) {
                const float *weights = stage.norm + (int64_t)(begin + i) * at.width;
                float sum = weights[past] * x[i] + (stage.norm_bias ? stage.norm_bias[begin + i] : 0);
                for (int tap = 0; tap < past; tap++) sum += weights[tap] * seen[(size_t)(tap * CONV_COLUMNS + i)];
                y[i] = sum;
            }
            memmove(seen.data(), seen.data() + CONV_COLUMNS, (size_t)(past * CONV_COLUMNS) * sizeof(float));
            memcpy(seen.data() + (past - 1) * CONV_COLUMNS, x, (size_t)count * sizeof(float));
        }
        for (int tap = 0; tap < past; tap++)
            memcpy(state + (int64_t)tap * columns, seen.data() + tap * CONV_COLUMNS, (size_t)count * sizeof(float));
    }
}

// A unit of work is one head of one sequence.
void Executor::delta_rule(const Stage &stage, std::atomic<int> &claimed, int thread) {
    const PfStage &at = stage.at;
    const int keys = at.key_width, values = at.value_width, heads = at.value_heads, group = heads / at.key_heads;
    std::vector<float> &change = scratch_[(size_t)thread].recurrent;
    change.resize((size_t)std::max<int>(values, (int)change.size()));
    for (int unit; (unit = claimed.fetch_add(1, std::memory_order_relaxed)) < state_.in->num_sequences * heads;) {
        const int sequence = unit / heads, head = unit % heads;
        const int key_head = at.turns ? head % at.key_heads : head / group;
        const int first = state_.in->row_starts[sequence], end = state_.in->row_starts[sequence + 1];
        float *state = state_of(stage, sequence) + (int64_t)head * keys * values;
        if (!state_.position[(size_t)first]) memset(state, 0, (size_t)(keys * values) * sizeof(float));
        for (int r = first; r < end; r++) {
            const float *q = row(at.input, r) + key_head * keys, *k = q + at.key_heads * keys;
            const float *v = row(at.input, r) + 2 * at.key_heads * keys + head * values;
            const float *gates = row(at.residual, r);
            const float decay = expf(-expf(stage.norm[head]) * softplus(gates[heads + head] + stage.norm_bias[head]));
            const float rate = 1 / (1 + expf(-gates[head]));
            advance(state, q, k, v, keys, values, decay, rate, change.data(), row(at.output, r) + head * values);
        }
    }
}

// A unit of work is one head of one sequence.
void Executor::ssm_scan(const Stage &stage, std::atomic<int> &claimed, int thread) {
    const PfStage &at = stage.at;
    const int keys = at.key_width, values = at.value_width, heads = at.value_heads, group = heads / at.key_heads;
    for (int unit; (unit = claimed.fetch_add(1, std::memory_order_relaxed)) < state_.in->num_sequences * heads;) {
        const int sequence = unit / heads, head = unit % heads;
        const int first = state_.in->row_starts[sequence], end = state_.in->row_starts[sequence + 1];
        float *state = state_of(stage, sequence) + (int64_t)head * keys * values;
        if (!state_.position[(size_t)first]) memset(state, 0, (size_t)(keys * values) * sizeof(float));
        for (int r = first; r < end; r++) {
            const float *x = row(at.input, r), *b = x + heads * values + head / group * keys, *c = b + at.key_heads * keys;
            const float step = softplus(row(at.residual, r)[head] + stage.norm_bias[head]);
            const float decay = expf(-expf(stage.norm[head]) * step);
            float *y = row(at.output, r) + head * values;
            scan(state, b, c, x + head * values, keys, values, decay, step, stage.skip[head], y);
        }
    }
}

}  // namespace pf
