// Linears with what is fused before them (residual, norm, quantisation) and behind them (gate, rotation and cache).
#include <string.h>

#include <algorithm>

#include "executor.h"

namespace pf {

// Threads claim work piece by piece, so that one that the system holds up does not hold up the others.
void Executor::linear(const Stage &stage, std::atomic<int> &claimed, int thread) {
    const std::vector<Run> &runs = stage.at.selected ? state_.selected_runs : state_.runs;
    if ((int)runs.size() >= CHUNKS_PER_THREAD * pool_.size())
        linear_by_rows(stage, runs, claimed, thread);
    else
        linear_by_units(stage, runs, claimed, thread);
}

// Whether codes of all rows of a linear over quantised weights stand in `entering_`, until the next linear enters.
bool Executor::shares_codes(const Stage &stage) const {
    const std::vector<Run> &runs = stage.at.selected ? state_.selected_runs : state_.runs;
    return (int)runs.size() < CHUNKS_PER_THREAD * pool_.size() && stage_rows(stage) > PRIVATE_ROWS &&
           std::none_of(runs.begin(), runs.end(), [](const Run &run) { return run.wide; });
}

// Many rows: a piece is a run of rows, which goes through all weights.
void Executor::linear_by_rows(const Stage &stage, const std::vector<Run> &runs, std::atomic<int> &claimed, int thread) {
    Scratch &scratch = scratch_[(size_t)thread];
    for (size_t i; (i = (size_t)claimed.fetch_add(1, std::memory_order_relaxed)) < runs.size();) {
        const auto [first, count, wide] = runs[i];
        for (int place = 0; place < count; place++) enter_row(stage, first + place, scratch.entering, place, wide, true);
        const Rows rows = entering_rows(stage, scratch.entering, first, wide);
        run_units(stage, rows, 0, 0, stage.units, first, count, scratch);
    }
}

// Few rows: a piece is some units of weights, through which all rows go.
void Executor::linear_by_units(const Stage &stage, const std::vector<Run> &runs, std::atomic<int> &claimed, int thread) {
    Scratch &scratch = scratch_[(size_t)thread];
    const int rows = stage_rows(stage);
    const bool own = rows <= PRIVATE_ROWS;
    const Entering &to = own ? scratch.entering : entering_;
    for (const auto &[first, count, wide] : runs) {
        const int begin = own ? first : std::max(first, share(rows, thread));
        const int end = own ? first + count : std::min(first + count, share(rows, thread + 1));
        for (int i = begin; i < end; i++) enter_row(stage, i, to, i, wide, !own || thread == 0);
    }
    if (!own) pool_.barrier();
    const int share = std::max(1, stage.units / (UNITS_PER_THREAD * pool_.size()));
    const int step = stage.unit == 1 && share > 1 ? share / 2 * 2 : share;  // two are computed together
    for (int begin; (begin = claimed.fetch_add(step, std::memory_order_relaxed)) < stage.units;)
        for (const auto &[first, count, wide] : runs)
            run_units(stage, entering_rows(stage, to, 0, wide), first, begin, std::min(begin + step, stage.units), first, count, scratch);
}

// Prepared rows as kernels read them; `first` is the row that stands first in `from`.
Rows Executor::entering_rows(const Stage &stage, const Entering &from, int first, bool wide) const {
    Rows rows = {from.values, from.stride, wide ? nullptr : from.codes, from.scale, from.sum, stage.columns, from.halves, from.stride};
    if (!stage.norm) {
        rows.values = row(stage.at.input, first);
        rows.stride = strides_[(size_t)stage.at.input];
    }
    return rows;
}

// Prepares row `index` of the stage as row `place` of `to`.
void Executor::enter_row(const Stage &stage, int index, const Entering &to, int place, bool wide, bool keep_total) {
    const PfStage &at = stage.at;
    const int64_t i = place, block = i * (stage.columns / BLOCK);
    const float *x = row(at.input, index);
    if (stage.norm) {
        float *values = to.values + i * to.stride;
        kernels_.norm(x, at.residual < 0 ? nullptr : row(at.residual, index),
                      keep_total && at.residual_out >= 0 ? row(at.residual_out, index) : nullptr, stage.norm,
                      at.eps, stage.columns, values);
        x = values;
    }
    if (stage.quantised && !wide)
        kernels_.quantise(x, stage.columns, to.codes + i * stage.columns, to.scale + block, to.sum + block);
    if (stage.bf16 || (stage.quantised && wide)) kernels_.round_bf16(x, stage.columns, to.halves + i * to.stride);
}

// Rows `at` ... of `rows` through some units of weights; they are rows `first` ... of the stage.
void Executor::run_units(const Stage &stage, const Rows &rows, int at, int begin, int end, int first, int count, Scratch &scratch) {
    const auto direct = [&](int unit) {
        const Piece &piece = stage.pieces[(size_t)(unit * stage.unit)];
        return stage.at.epilogue == PF_STORE && piece.valid == GROUP && !piece.bias;
    };
    const int stride = strides_[(size_t)stage.at.output];
    Outputs outputs[2];
    for (int unit = begin, n; unit < end; unit += n) {
        for (n = 0; n < 2 && unit + n < end && direct(unit + n); n++) {
            const Piece &piece = stage.pieces[(size_t)(unit + n)];
            outputs[n] = {piece.weight, piece.group, row(stage.at.output, first) + piece.column};
        }
        if (n > 0)
            multiply(outputs, n, rows, at, count, stride);
        else
            run_unit(stage, rows, at, unit, first, count, scratch), n = 1;
    }
}

// One unit that has something done to its results.
void Executor::run_unit(const Stage &stage, const Rows &rows, int at, int unit, int first, int count, Scratch &scratch) {
    const Piece *pieces = &stage.pieces[(size_t)(unit * stage.unit)];
    // Rows of a head lie together for the rotation; elsewhere each piece has its own run of the tile.
    const bool together = stage.at.epilogue == PF_THEN_ROPE_CACHE;
    const int stride = together ? stage.unit * GROUP : GROUP, step = together ? GROUP : count * GROUP;
    Outputs outputs[2];
    for (int p = 0, n; p < stage.unit; p += n) {
        for (n = 0; n < 2 && p + n < stage.unit; n++)
            outputs[n] = {pieces[p + n].weight, pieces[p + n].group, scratch.tile + (p + n) * step};
        multiply(outputs, n, rows, at, count, stride);
    }
    for (int p = 0; p < stage.unit; p++)
        for (int i = 0; i < count && pieces[p].bias; i++)
            for (int r = 0; r < pieces[p].valid; r++) scratch.tile[p * step + i * stride + r] += pieces[p].bias[r];
    finish_unit(stage, unit, first, count, scratch.tile);
}

// Rows through one group or two, together where these are alike.
void Executor::multiply(const Outputs *outputs, int num_outputs, const Rows &rows, int first, int count, int out_stride) {
    const PackedKind kind = outputs[0].weight->kind, last = outputs[num_outputs - 1].weight->kind;
    const int alike = kind == last ? num_outputs : 1;
    kernels_.linear[kind](outputs, alike, rows, first, count, out_stride);
    if (alike < num_outputs) kernels_.linear[last](outputs + 1, 1, rows, first, count, out_stride);
}

void Executor::finish_unit(const Stage &stage, int unit, int first, int count, float *tile) {
    const Piece &piece = stage.pieces[(size_t)(unit * stage.unit)];
    switch (stage.at.epilogue) {
        case PF_THEN_SILU_MUL:
            kernels_.silu_mul(tile, tile + count * GROUP, count, GROUP, piece.valid, row(stage.at.output, first) + piece.column,
                              strides_[(size_t)stage.at.output]);
            break;
        case PF_STORE:
            for (int i = 0; i < count; i++)
                memcpy(row(stage.at.output, first + i) + piece.column, tile + i * GROUP, (size_t)piece.valid * sizeof(float));
            break;
        case PF_THEN_ROPE_CACHE:
            for (int i = 0; i < count; i++) rope_head(stage, first + i, unit, tile + i * stage.unit * GROUP);
            break;
    }
}

}  // namespace pf
