// Linears with what is fused before them (residual, norm, quantisation) and behind them (gate, rotation and cache).
#include <string.h>

#include <algorithm>

#include "engine.h"
#include "limits.h"

namespace pf {

// Many rows: each thread takes some of them through all weights. Few: all rows through its share of the weights.
void Engine::linear(const Stage &stage, int thread) {
    const int rows = stage_rows(stage);
    const bool by_rows = rows >= pool_.size() * ROW_CHUNK / 2;
    const Rows entering = enter(stage, rows, thread);
    if (rows > PRIVATE_ROWS && !by_rows) pool_.barrier();
    const int first = by_rows ? share(rows, thread) : 0, last = by_rows ? share(rows, thread + 1) : rows;
    const int begin = by_rows ? 0 : share(stage.units, thread), end = by_rows ? stage.units : share(stage.units, thread + 1);
    for (int row = first; row < last; row += ROW_CHUNK)
        for (int unit = begin; unit < end; unit++)
            run_unit(stage, entering, unit, row, std::min(ROW_CHUNK, last - row), scratch_[(size_t)thread]);
}

// Prepares this thread's rows; those of other threads are there after a barrier.
Rows Engine::enter(const Stage &stage, int rows, int thread) {
    const bool own = rows <= PRIVATE_ROWS;
    const Entering &to = own ? scratch_[(size_t)thread].entering : entering_;
    for (int i = own ? 0 : share(rows, thread); i < (own ? rows : share(rows, thread + 1)); i++)
        enter_row(stage, i, to, !own || thread == 0);
    Rows out = {to.values, to.stride, to.codes, to.scale, to.sum, stage.columns, to.halves, to.stride};
    if (!stage.norm) {
        out.values = row(stage.at.input, 0);
        out.stride = strides_[(size_t)stage.at.input];
    }
    return out;
}

void Engine::enter_row(const Stage &stage, int index, const Entering &to, bool keep_total) {
    const PfStage &at = stage.at;
    const int64_t i = index, block = i * (stage.columns / BLOCK);
    const float *x = row(at.input, i);
    if (stage.norm) {
        float *values = to.values + i * to.stride;
        kernels_.norm(x, at.residual < 0 ? nullptr : row(at.residual, i),
                      keep_total && at.residual_out >= 0 ? row(at.residual_out, i) : nullptr, stage.norm,
                      model_.norm_eps, stage.columns, values);
        x = values;
    }
    if (stage.quantised) kernels_.quantise(x, stage.columns, to.codes + i * stage.columns, to.scale + block, to.sum + block);
    if (stage.bf16) kernels_.round_bf16(x, stage.columns, to.halves + i * to.stride);
}

void Engine::run_unit(const Stage &stage, const Rows &rows, int unit, int first, int count, Scratch &scratch) {
    const Piece *pieces = &stage.pieces[(size_t)(unit * stage.unit)];
    const bool direct = stage.at.epilogue == PF_STORE && pieces->valid == GROUP && !pieces->bias;
    if (direct) {
        kernels_.linear[pieces->weight->kind](*pieces->weight, pieces->group, rows, first, count,
                                              row(stage.at.output, first) + pieces->column,
                                              strides_[(size_t)stage.at.output]);
        return;
    }
    // Rows of a head lie together for the rotation; elsewhere each piece has its own run of the tile.
    const bool together = stage.at.epilogue == PF_THEN_ROPE_CACHE;
    const int stride = together ? stage.unit * GROUP : GROUP, step = together ? GROUP : count * GROUP;
    for (int p = 0; p < stage.unit; p++) {
        const Piece &piece = pieces[p];
        float *tile = scratch.tile + p * step;
        kernels_.linear[piece.weight->kind](*piece.weight, piece.group, rows, first, count, tile, stride);
        if (piece.bias)
            for (int i = 0; i < count; i++)
                for (int r = 0; r < piece.valid; r++) tile[i * stride + r] += piece.bias[r];
    }
    finish_unit(stage, unit, first, count, scratch.tile);
}

void Engine::finish_unit(const Stage &stage, int unit, int first, int count, float *tile) {
    const Piece &piece = stage.pieces[(size_t)(unit * stage.unit)];
    switch (stage.at.epilogue) {
        case PF_THEN_SILU_MUL:
            kernels_.silu_mul(tile, tile + count * GROUP, count * GROUP, tile);
            [[fallthrough]];
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
