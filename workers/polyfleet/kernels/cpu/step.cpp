#include <math.h>
#include <string.h>

#include <algorithm>

#include "engine.h"
#include "pack.h"

namespace pf {

void Engine::step(int program, const PfStep &step) {
    Program &chosen = *programs_[(size_t)program];
    reserve(step.num_tokens);
    state_.in = &step;
    prepare_rows(step);
    prepare_runs(step);
    prepare_spans(step);
    for (size_t i = 0; i < chosen.stages.size(); i++) chosen.claimed[i].store(0, std::memory_order_relaxed);
    state_.largest.resize((size_t)(step.num_selected * pool_.size()));
    pool_.run([&](int thread) { run(chosen, thread); });
    if (step.greedy_ids) choose_largest(step);
}

void Engine::prepare_rows(const PfStep &step) {
    const size_t rows = (size_t)step.num_tokens, half = (size_t)model_.head_dim / 2;
    state_.position.resize(rows);
    state_.slice.resize(rows);
    state_.key_slot.resize(rows);
    state_.value_slot.resize(rows);
    state_.cosine.resize(rows * half);
    state_.sine.resize(rows * half);
    for (int slice = 0; slice < step.num_slices; slice++) {
        const int32_t *table = step.block_tables + step.table_offsets[slice];
        for (int row = step.slice_rows[slice]; row < step.slice_rows[slice + 1]; row++) {
            const size_t i = (size_t)row;
            const int position = step.slice_starts[slice] + row - step.slice_rows[slice];
            const int64_t block = table[position / model_.block_size], inside = position % model_.block_size;
            state_.position[i] = position;
            state_.slice[i] = slice;
            state_.key_slot[i] = block * cache_.key_block + inside;
            state_.value_slot[i] = block * cache_.value_block + inside * cache_.value_stride;
        }
    }
}

void Engine::prepare_runs(const PfStep &step) {
    auto cut = [](std::vector<Run> &runs, int first, int end, bool wide) {
        const int most = wide ? WIDE_CHUNK : ROW_CHUNK;
        for (; first < end; first += most) runs.push_back({first, std::min(most, end - first), wide});
    };
    state_.runs.clear();
    state_.selected_runs.clear();
    int narrow = 0;  // the first row of no run yet
    for (int slice = 0; slice < step.num_slices; slice++) {
        const int first = step.slice_rows[slice], end = step.slice_rows[slice + 1];
        if (!is_wide(end - first)) continue;
        cut(state_.runs, narrow, first, false);
        cut(state_.runs, first, end, true);
        narrow = end;
    }
    cut(state_.runs, narrow, step.num_tokens, false);
    cut(state_.selected_runs, 0, step.num_selected, false);
}

void Engine::run(Program &program, int thread) {
    // Angles are float32 products, as every implementation of this rotation rounds them.
    const int half = model_.head_dim / 2;
    for (int i = share(state_.in->num_tokens, thread); i < share(state_.in->num_tokens, thread + 1); i++)
        for (int j = 0; j < half; j++) {
            const float angle = (float)state_.position[(size_t)i] * frequencies_[(size_t)j];
            state_.cosine[(size_t)(i * half + j)] = cosf(angle);
            state_.sine[(size_t)(i * half + j)] = sinf(angle);
        }
    for (size_t i = 0; i < program.stages.size(); i++) {
        const Stage &stage = program.stages[i];
        switch (stage.at.kind) {
            case PF_EMBEDDING: embed(stage, thread); break;
            case PF_NORM: normalise(stage, thread); break;
            case PF_LINEAR: linear(stage, program.claimed[i], thread); break;
            case PF_ROPE_CACHE: rope_cache(stage, thread); break;
            case PF_ATTENTION: attend(stage, program.claimed[i], thread); break;
            case PF_SILU_MUL: silu(stage, thread); break;
            case PF_SELECT: select(stage, thread); break;
        }
        if (i + 1 < program.stages.size() || state_.in->greedy_ids) pool_.barrier();
    }
    if (state_.in->greedy_ids) find_largest(thread);
}

void Engine::find_largest(int thread) {
    const int columns = widths_[(size_t)state_.in->logits], begin = share(columns, thread);
    for (int i = 0; i < state_.in->num_selected; i++) {
        Largest &out = state_.largest[(size_t)(i * pool_.size() + thread)];
        out.finite = kernels_.largest(row(state_.in->logits, i) + begin, share(columns, thread + 1) - begin, &out.id, &out.logit);
        if (out.id >= 0) out.id += begin;
    }
}

void Engine::choose_largest(const PfStep &step) const {
    for (int i = 0; i < step.num_selected; i++) {
        const Largest *shares = &state_.largest[(size_t)(i * pool_.size())];
        Largest best = {-1, -INFINITY, true};
        for (int thread = 0; thread < pool_.size(); thread++) {
            best.finite = best.finite && shares[thread].finite;
            if (shares[thread].id >= 0 && shares[thread].logit > best.logit) best.id = shares[thread].id, best.logit = shares[thread].logit;
        }
        step.greedy_ids[i] = best.finite ? best.id : -1;
    }
}

void Engine::embed(const Stage &stage, int thread) {
    for (int i = share(state_.in->num_tokens, thread); i < share(state_.in->num_tokens, thread + 1); i++)
        expand_row(*stage.table, state_.in->token_ids[i], row(stage.at.output, i));
}

void Engine::normalise(const Stage &stage, int thread) {
    const PfStage &at = stage.at;
    const int rows = stage_rows(stage), columns = widths_[(size_t)at.input];
    for (int i = share(rows, thread); i < share(rows, thread + 1); i++)
        kernels_.norm(row(at.input, i), at.residual < 0 ? nullptr : row(at.residual, i),
                      at.residual_out < 0 ? nullptr : row(at.residual_out, i), stage.norm, model_.norm_eps, columns,
                      row(at.output, i));
}

void Engine::silu(const Stage &stage, int thread) {
    const int rows = stage_rows(stage), columns = widths_[(size_t)stage.at.output];
    for (int i = share(rows, thread); i < share(rows, thread + 1); i++) {
        const float *gate = row(stage.at.input, i);
        kernels_.silu_mul(gate, gate + columns, columns, row(stage.at.output, i));
    }
}

void Engine::select(const Stage &stage, int thread) {
    const int rows = state_.in->num_selected;
    for (int i = share(rows, thread); i < share(rows, thread + 1); i++)
        memcpy(row(stage.at.output, i), row(stage.at.input, state_.in->selected_rows[i]),
               (size_t)widths_[(size_t)stage.at.input] * sizeof(float));
}

void Engine::rope_cache(const Stage &stage, int thread) {
    const int dim = model_.head_dim, heads = model_.num_heads + 2 * model_.num_kv_heads;
    for (int i = share(state_.in->num_tokens, thread); i < share(state_.in->num_tokens, thread + 1); i++)
        for (int head = 0; head < heads; head++) {
            memcpy(scratch_[(size_t)thread].tile, row(stage.at.input, i) + head * dim, (size_t)dim * sizeof(float));
            rope_head(stage, i, head, scratch_[(size_t)thread].tile);
        }
}

// Rotates and stores one head of one row: q first, then k, then v heads. Overwrites x.
void Engine::rope_head(const Stage &stage, int index, int head, float *x) {
    const int dim = model_.head_dim, kv_heads = model_.num_kv_heads;
    const size_t i = (size_t)index, angle = i * (size_t)(dim / 2);
    if (head < model_.num_heads + kv_heads) kernels_.rotate(x, &state_.cosine[angle], &state_.sine[angle], dim / 2);
    if (head < model_.num_heads) {
        memcpy(row(stage.at.output, index) + head * dim, x, (size_t)dim * sizeof(float));
        return;
    }
    head -= model_.num_heads;
    if (head < kv_heads) {
        uint16_t *key = cache_.keys.as<uint16_t>() + stage.at.layer * cache_.key_layer + state_.key_slot[i];
        kernels_.store_half(x, dim, cache_.key_stride, key + (int64_t)head * dim * cache_.key_stride);
        return;
    }
    head -= kv_heads;
    uint16_t *value = cache_.values.as<uint16_t>() + stage.at.layer * cache_.value_layer + state_.value_slot[i];
    kernels_.store_half(x, dim, 1, value + (int64_t)head * model_.block_size * cache_.value_stride);
}

}  // namespace pf
