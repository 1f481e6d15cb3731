// Mixtures of experts: which experts a row goes to, and these experts, each for all rows that go to it together. An
// expert that no row goes to is not read. A row's experts are summed up in their order, whoever else is in the step.
#include <math.h>
#include <string.h>

#include <algorithm>

#include "executor.h"

namespace pf {

namespace {

const float STEEPNESS = 1.702f;  // of the gate that experts with a limit have
const float TINY = 1e-20f;       // keeps shares finite where all of them are 0

// Takes the largest number's place out of the race; the first of equal ones, or the first that is no number.
int take_largest(float *x, int n) {
    int best = 0;
    for (int i = 0; i < n; i++) {
        if (x[i] != x[i]) {
            best = i;
            break;
        }
        if (x[i] > x[best]) best = i;
    }
    x[best] = -INFINITY;
    return best;
}

void softmax(const float *x, int n, float *y) {
    float peak = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) peak = std::max(peak, x[i]);
    for (int i = 0; i < n; i++) sum += y[i] = expf(x[i] - peak);
    for (int i = 0; i < n; i++) y[i] /= sum;
}

// Leaves the experts of the best groups in the race.
void keep_best_groups(const PfStage &at, std::vector<float> &race) {
    const int size = at.experts / at.groups;
    std::vector<float> worth((size_t)at.groups), group((size_t)size);
    for (int g = 0; g < at.groups; g++) {
        group.assign(race.begin() + g * size, race.begin() + (g + 1) * size);
        for (int i = 0; i < at.group_best; i++) {
            const std::vector<float> before = group;
            worth[(size_t)g] += before[(size_t)take_largest(group.data(), size)];
        }
    }
    std::vector<bool> kept((size_t)at.groups);
    for (int i = 0; i < at.top_groups; i++) kept[(size_t)take_largest(worth.data(), at.groups)] = true;
    for (int i = 0; i < at.experts; i++)
        if (!kept[(size_t)(i / size)]) race[(size_t)i] = -INFINITY;
}

// 16 columns of `count` rows behind each other.
void gate_tile(float *gate, const float *up, int count, float limit) {
    for (int i = 0; i < count * GROUP; i++) {
        const float g = std::min(gate[i], limit), u = std::min(std::max(up[i], -limit), limit);
        gate[i] = g / (1 + expf(-STEEPNESS * g)) * (u + 1);
    }
}

// Each row of 16 columns by its visit's share.
void weigh_tile(float *tile, int count, const Visit *visits) {
    for (int i = 0; i < count; i++)
        for (int j = 0; j < GROUP; j++) tile[i * GROUP + j] *= visits[i].share;
}

void square_tile(float *tile, int count) {
    for (int i = 0; i < count * GROUP; i++) tile[i] = tile[i] < 0 ? 0 : tile[i] * tile[i];
}

void add_bias(float *tile, int count, const float *bias) {
    if (!bias) return;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < GROUP; j++) tile[i * GROUP + j] += bias[j];
}

}  // namespace

void Executor::route(const Stage &stage, int thread) {
    const PfStage &at = stage.at;
    const int rows = stage_rows(stage), n = at.experts;
    std::vector<float> scores((size_t)n), race((size_t)n);
    for (int i = share(rows, thread); i < share(rows, thread + 1); i++) {
        const float *logits = row(at.input, i);
        float *shares = row(at.output, i), sum = 0;
        if (at.sigmoid)
            for (int e = 0; e < n; e++) scores[(size_t)e] = 1 / (1 + expf(-logits[e]));
        else
            softmax(logits, n, scores.data());
        for (int e = 0; e < n; e++) race[(size_t)e] = scores[(size_t)e] + (stage.norm_bias ? stage.norm_bias[e] : 0);
        if (at.top_groups < at.groups) keep_best_groups(at, race);
        memset(shares, 0, (size_t)n * sizeof(float));
        std::vector<int> chosen((size_t)at.top_k);
        for (int k = 0; k < at.top_k; k++) sum += scores[(size_t)(chosen[(size_t)k] = take_largest(race.data(), n))];
        const float factor = at.factor / (at.renormalise ? sum + TINY : 1);
        for (int k = 0; k < at.top_k; k++) shares[chosen[(size_t)k]] = scores[(size_t)chosen[(size_t)k]] * factor;
    }
}

void Executor::experts(const Stage &stage, std::atomic<int> &entered, std::atomic<int> &left, int thread) {
    const int rows = stage_rows(stage);
    for (int i = share(rows, thread); i < share(rows, thread + 1); i++) enter_row(stage, i, entering_, i, false, false);
    if (thread == 0) list_visits(stage);
    pool_.barrier();
    enter_experts(stage, entered, thread);
    pool_.barrier();
    const Packed &down = *stage.down;
    const int visits = (int)state_.visits.size(), columns = down.columns;
    for (int i = share(visits, thread); i < share(visits, thread + 1); i++) {
        const float *x = inside_.values + (int64_t)i * inside_.stride;
        const int64_t block = (int64_t)i * (columns / BLOCK);
        if (down.blocks)
            kernels_.quantise(x, columns, inside_.codes + (int64_t)i * columns, inside_.scale + block, inside_.sum + block);
        if (down.kind == PACKED_BF16 && kernels_.round_bf16)
            kernels_.round_bf16(x, columns, inside_.halves + (int64_t)i * inside_.stride);
    }
    pool_.barrier();
    leave_experts(stage, left, thread);
}

void Executor::list_visits(const Stage &stage) {
    const int rows = stage_rows(stage);
    state_.visits.clear();
    state_.visited.clear();
    for (int expert = 0; expert < stage.at.experts; expert++) {
        int first = (int)state_.visits.size();
        for (int i = 0; i < rows; i++)
            if (const float share = row(stage.at.residual, i)[expert]; share != 0) state_.visits.push_back({i, share});
        for (const int end = (int)state_.visits.size(); first < end; first += ROW_CHUNK) {
            const int count = std::min(ROW_CHUNK, end - first), span = state_.visits[(size_t)(first + count - 1)].row - state_.visits[(size_t)first].row;
            state_.visited.push_back({expert, first, count, span == count - 1});
        }
    }
}

// The rows of some visits behind each other; the first of them is `first` of what they are read from.
Rows Executor::gather(const Stage &stage, const Visits &visits, const Entering &to) const {
    const int columns = stage.columns, blocks = columns / BLOCK;
    for (int i = 0; i < visits.count; i++) {
        const int64_t from = state_.visits[(size_t)(visits.first + i)].row;
        const auto copy = [&](auto *target, const auto *source, int64_t stride, int count) {
            memcpy(target + i * stride, source + from * stride, (size_t)count * sizeof(*target));
        };
        memcpy(to.values + (int64_t)i * to.stride, row(stage.at.input, from), (size_t)columns * sizeof(float));
        if (stage.bf16) copy(to.halves, entering_.halves, to.stride, (int)round_up(columns, 2));
        if (!stage.quantised) continue;
        copy(to.codes, entering_.codes, columns, columns);
        copy(to.scale, entering_.scale, blocks, blocks);
        copy(to.sum, entering_.sum, blocks, blocks);
    }
    return {to.values, to.stride, to.codes, to.scale, to.sum, columns, to.halves, to.stride};
}

// Gates and ups: a piece is some groups of 16 columns inside one expert, for all rows that go to it.
void Executor::enter_experts(const Stage &stage, std::atomic<int> &claimed, int thread) {
    Scratch &scratch = scratch_[(size_t)thread];
    const int groups = stage.up->groups / stage.at.experts, units = groups * (int)state_.visited.size();
    const int step = std::max(1, units / (UNITS_PER_THREAD * pool_.size()));
    int gathered = -1;
    Rows rows = {};
    for (int begin; (begin = claimed.fetch_add(step, std::memory_order_relaxed)) < units;)
        for (int unit = begin; unit < std::min(begin + step, units); unit++) {
            const int at = unit / groups, inside = unit % groups;
            const Visits &visits = state_.visited[(size_t)at];
            if (at != gathered)
                rows = visits.in_place ? entering_rows(stage, entering_, 0, false) : gather(stage, visits, scratch.entering);
            gathered = at;
            const int first = visits.in_place ? state_.visits[(size_t)visits.first].row : 0, count = visits.count;
            const int group = visits.expert * groups + inside;
            float *up = scratch.tile, *gate = stage.gate ? up + count * GROUP : up;
            const Outputs both[2] = {{stage.up, group, up}, {stage.gate, group, gate}};
            multiply(both, stage.gate ? 2 : 1, rows, first, count, GROUP);
            add_bias(up, count, stage.up_bias ? stage.up_bias + group * GROUP : nullptr);
            if (stage.gate) add_bias(gate, count, stage.gate_bias ? stage.gate_bias + group * GROUP : nullptr);
            if (stage.at.early) {
                weigh_tile(up, count, &state_.visits[(size_t)visits.first]);
                if (stage.gate) weigh_tile(gate, count, &state_.visits[(size_t)visits.first]);
            }
            if (!stage.gate)
                square_tile(up, count);
            else if (stage.at.factor > 0)
                gate_tile(gate, up, count, stage.at.factor);
            else
                kernels_.silu_mul(gate, up, 1, 0, count * GROUP, gate, 0);
            const int valid = std::min(GROUP, stage.down->columns - inside * GROUP);
            for (int i = 0; i < count; i++)
                memcpy(inside_.values + (int64_t)(visits.first + i) * inside_.stride + inside * GROUP, gate + i * GROUP,
                       (size_t)valid * sizeof(float));
        }
}

// Downs: a piece is some groups of 16 columns of the output, to which all experts add.
void Executor::leave_experts(const Stage &stage, std::atomic<int> &claimed, int thread) {
    float *tile = scratch_[(size_t)thread].tile;
    const Packed &down = *stage.down;
    const int output = stage.at.output, groups = down.groups / stage.at.experts, rows = stage_rows(stage);
    const int step = std::max(1, groups / (UNITS_PER_THREAD * pool_.size()));
    const Rows inside = {inside_.values, inside_.stride, inside_.codes, inside_.scale, inside_.sum, down.columns, inside_.halves, inside_.stride};
    for (int begin; (begin = claimed.fetch_add(step, std::memory_order_relaxed)) < groups;) {
        const int end = std::min(begin + step, groups), width = std::min(end * GROUP, widths_[(size_t)output]) - begin * GROUP;
        for (int i = 0; i < rows; i++) memset(row(output, i) + begin * GROUP, 0, (size_t)width * sizeof(float));
        for (const Visits &visits : state_.visited)
            for (int g = begin; g < end; g++) {
                const int group = visits.expert * groups + g, valid = std::min(GROUP, widths_[(size_t)output] - g * GROUP);
                const Outputs outputs = {&down, group, tile};
                multiply(&outputs, 1, inside, visits.first, visits.count, GROUP);
                add_bias(tile, visits.count, stage.down_bias ? stage.down_bias + group * GROUP : nullptr);
                for (int i = 0; i < visits.count; i++) {
                    const Visit &visit = state_.visits[(size_t)(visits.first + i)];
                    float *out = row(output, visit.row) + g * GROUP, share = stage.at.early ? 1 : visit.share;
                    for (int j = 0; j < valid; j++) out[j] += share * tile[i * GROUP + j];
                }
            }
    }
}

}  // namespace pf
