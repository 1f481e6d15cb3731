#include <math.h>
#include <string.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "executor.h"
#include "pack.h"

namespace pf {

void Executor::step(int program, const PfStep &step) {
    Program &chosen = *programs_[(size_t)program];
    check(step);
    state_.in = &step;
    prepare_rows(step);
    prepare_runs(step);
    prepare_spans(step);
    prepare_adapted(step, false, state_.adapted);
    prepare_adapted(step, true, state_.selected_adapted);
    for (size_t i = 0; i < 2 * chosen.stages.size(); i++) chosen.claimed[i].store(0, std::memory_order_relaxed);
    state_.largest.resize((size_t)(step.num_draws * pool_.size()));
    memset(step.faults, 0, (size_t)step.num_sequences);
    clear_blocks(step);
    pool_.run([&](int thread) { run(chosen, thread); });
    if (step.greedy_ids) choose_largest(step);
}

void Executor::check(const PfStep &step) const {
    auto check = [](bool good, const char *what, int size = -1) {
        if (!good) throw std::invalid_argument(what + (size < 0 ? std::string() : std::to_string(size - 1)));
    };
    auto within = [](const int32_t *numbers, int count, int size) {
        uint32_t largest = 0;  // negative ones are larger than all others
        for (int i = 0; i < count; i++) largest = std::max(largest, (uint32_t)numbers[i]);
        return count == 0 || largest < (uint32_t)size;
    };
    const char *const blocks = "block tables must name blocks 0 to ";
    check(step.num_rows <= capacity_, "there is no room for so many rows");
    check(within(step.token_ids, step.num_rows, vocabulary_), "token ids must be 0 to ", vocabulary_);
    const int slots = states_at_.back() ? std::min(step.num_slots, num_slots_) : step.num_slots;
    check(within(step.slots, step.num_sequences, slots), "slots must be 0 to ", slots);
    for (int sequence = 0; step.adapters && sequence < step.num_sequences; sequence++) {
        const int adapter = step.adapters[step.slots[sequence]];
        check(adapter < (int)adapters_.size() && (adapter < 0 || adapters_[(size_t)adapter]), "an adapter is not there");
    }
    check(within(step.cleared_blocks, step.num_cleared, cache_.num_blocks + cache_.local_blocks), blocks,
          cache_.num_blocks + cache_.local_blocks);
    for (int sequence = 0; sequence < step.num_sequences; sequence++) {
        const int64_t rows = (int64_t)step.row_starts[sequence + 1] - step.row_starts[sequence];
        const int64_t length = step.lengths[sequence];
        check(rows > 0 && rows <= length && length <= (int64_t)table_blocks(step) * cache_.block_size,
              "a sequence must have tokens, a start of 0 or more, and a block for each of its positions");
        check(length <= most_positions_, "positions must be 0 to ", most_positions_);
        check(model_.causal || rows == length, "without causality a step has its sequences whole");
        const int num_blocks = (int)((length + cache_.block_size - 1) / cache_.block_size);
        check(within(table(step, sequence, false), num_blocks, cache_.num_blocks), blocks, cache_.num_blocks);
        if (cache_.local_blocks)
            check(within(table(step, sequence, true), num_blocks, cache_.local_blocks), blocks, cache_.local_blocks);
    }
    const bool whole = step.row_starts[0] == 0 && step.row_starts[step.num_sequences] == step.num_rows;
    check(whole, "all rows must be of sequences");
    check(within(step.draw_rows, step.num_draws, step.num_rows), "draws must be of rows 0 to ", step.num_rows);
    check(step.num_draws <= step.num_rows, "there must be no more draws than rows");
    check(within(step.given_rows, step.num_given, step.num_rows), "rows that are given must be 0 to ", step.num_rows);
}

void Executor::clear_blocks(const PfStep &step) {
    for (int i = 0; i < step.num_cleared; i++)
        for (int layer = 0; layer < model_.num_layers; layer++) {
            const bool second = step.cleared_blocks[i] >= cache_.num_blocks;  // pool
            if (second != is_local(layer)) continue;
            const int64_t block = step.cleared_blocks[i] - (second ? cache_.num_blocks : 0);
            memset(keys_of(layer) + block * cache_.key_block, 0, (size_t)cache_.key_block);
            memset(values_of(layer) + block * cache_.value_block, 0, (size_t)cache_.value_block);
        }
}

void Executor::prepare_rows(const PfStep &step) {
    const size_t rows = (size_t)step.num_rows, angles = frequencies_.size();
    state_.position.resize(rows);
    state_.sequence.resize(rows);
    const int pools = cache_.local_blocks ? 2 : 1;
    for (int pool = 0; pool < pools; pool++) state_.block[pool].resize(rows);
    state_.cosine.resize(rows * angles);
    state_.sine.resize(rows * angles);
    for (int sequence = 0; sequence < step.num_sequences; sequence++) {
        const int end = step.row_starts[sequence + 1], to_position = step.lengths[sequence] - end;
        for (int row = step.row_starts[sequence]; row < end; row++) {
            const size_t i = (size_t)row;
            const int position = row + to_position;
            state_.position[i] = position;
            state_.sequence[i] = sequence;
            for (int pool = 0; pool < pools; pool++)
                state_.block[pool][i] = table(step, sequence, pool)[position / cache_.block_size];
        }
    }
}

void Executor::prepare_runs(const PfStep &step) {
    auto cut = [](std::vector<Run> &runs, int first, int end, bool wide) {
        const int most = wide ? WIDE_CHUNK : ROW_CHUNK;
        for (; first < end; first += most) runs.push_back({first, std::min(most, end - first), wide});
    };
    state_.runs.clear();
    state_.selected_runs.clear();
    int narrow = 0;  // the first row of no run yet
    for (int sequence = 0; sequence < step.num_sequences; sequence++) {
        const int first = step.row_starts[sequence], end = step.row_starts[sequence + 1];
        if (!is_wide(end - first)) continue;
        cut(state_.runs, narrow, first, false);
        cut(state_.runs, first, end, true);
        narrow = end;
    }
    cut(state_.runs, narrow, step.num_rows, false);
    cut(state_.selected_runs, 0, step.num_draws, false);
}

void Executor::find_angles(int thread) {
    // Angles are float32 products, as every implementation of this rotation rounds them.
    const size_t angles = frequencies_.size();
    for (int i = share(state_.in->num_rows, thread); i < share(state_.in->num_rows, thread + 1); i++)
        for (size_t j = 0; j < angles; j++) {
            if (frequencies_[j] == 0) {
                state_.cosine[(size_t)i * angles + j] = amplitudes_[j];
                state_.sine[(size_t)i * angles + j] = 0;
                continue;
            }
            const float angle = (float)state_.position[(size_t)i] * frequencies_[j];
            state_.cosine[(size_t)i * angles + j] = cosf(angle) * amplitudes_[j];
            state_.sine[(size_t)i * angles + j] = sinf(angle) * amplitudes_[j];
        }
}

void Executor::run(Program &program, int thread) {
    find_angles(thread);
    for (size_t i = 0; i < program.stages.size(); i++) {
        const Stage &stage = program.stages[i];
        switch (stage.at.kind) {
            case PF_EMBEDDING: embed(stage, thread); break;
            case PF_LOOKUP: look_up(stage, thread); break;
            case PF_NORM: normalise(stage, thread); break;
            case PF_LINEAR: linear(stage, program.claimed[i], thread); break;
            case PF_ROPE_CACHE: rope_cache(stage, thread); break;
            case PF_CACHE_WRITE: cache_write(stage, thread); break;
            case PF_ATTENTION: attend(stage, program.claimed[i], thread); break;
            case PF_SILU_MUL: silu(stage, thread); break;
            case PF_ROPE: rope(stage, thread); break;
            case PF_HEAD_LINEAR: head_linear(stage, program.claimed[i], thread); break;
            case PF_LATENT_WRITE: latent_write(stage, thread); break;
            case PF_ROUTE: route(stage, thread); break;
            case PF_EXPERTS: experts(stage, program.claimed[i], program.claimed[program.stages.size() + i], thread); break;
            case PF_CAUSAL_CONV: causal_conv(stage, program.claimed[i], thread); break;
            case PF_DELTA_RULE: delta_rule(stage, program.claimed[i], thread); break;
            case PF_SSM_SCAN: ssm_scan(stage, program.claimed[i], thread); break;
            case PF_SELECT: select(stage, thread); break;
            case PF_ADAPT: adapt(stage, program.claimed[i], thread); break;
            default: compute_rows(stage, thread); break;
        }
        if (i + 1 < program.stages.size() || state_.in->greedy_ids) pool_.barrier();
    }
    if (state_.in->greedy_ids) find_largest(thread);
}

void Executor::find_largest(int thread) {
    const int columns = widths_[(size_t)state_.in->logits], begin = share(columns, thread);
    for (int i = 0; i < state_.in->num_draws; i++) {
        Largest &out = state_.largest[(size_t)(i * pool_.size() + thread)];
        out.finite = kernels_.largest(row(state_.in->logits, i) + begin, share(columns, thread + 1) - begin, &out.id, &out.logit);
        if (out.id >= 0) out.id += begin;
    }
}

void Executor::choose_largest(const PfStep &step) {
    for (int i = 0; i < step.num_draws; i++) {
        const Largest *shares = &state_.largest[(size_t)(i * pool_.size())];
        Largest best = {-1, -INFINITY, true};
        for (int thread = 0; thread < pool_.size(); thread++) {
            best.finite = best.finite && shares[thread].finite;
            if (shares[thread].id >= 0 && shares[thread].logit > best.logit) best.id = shares[thread].id, best.logit = shares[thread].logit;
        }
        step.greedy_ids[i] = best.finite ? best.id : 0;
        if (!best.finite) set_fault(state_.sequence[(size_t)step.draw_rows[i]]);
    }
}

void Executor::embed(const Stage &stage, int thread) {
    const PfStep &in = *state_.in;
    const int first = share(in.num_rows, thread), end = share(in.num_rows, thread + 1);
    for (int i = first; i < end; i++) expand_row(*stage.table, in.token_ids[i], row(stage.at.output, i));
    const size_t columns = (size_t)widths_[(size_t)stage.at.output];
    const int32_t *last = in.given_rows + in.num_given;
    for (const int32_t *at = std::lower_bound(in.given_rows, last, first); at != last && *at < end; at++)
        memcpy(row(stage.at.output, *at), in.given + (size_t)(at - in.given_rows) * columns, columns * sizeof(float));
}

void Executor::look_up(const Stage &stage, int thread) {
    for (int i = share(state_.in->num_rows, thread); i < share(state_.in->num_rows, thread + 1); i++)
        expand_row(*stage.table, stage.at.first_row + (stage.at.width ? state_.position[(size_t)i] : 0), row(stage.at.output, i));
}

void Executor::normalise(const Stage &stage, int thread) {
    const PfStage &at = stage.at;
    const int rows = stage_rows(stage), columns = widths_[(size_t)at.input];
    const bool apart = weights_[(size_t)at.norm].source.columns == columns;  // whether each head has its part of the weight
    for (int i = share(rows, thread); at.width && i < share(rows, thread + 1); i++)
        for (int c = 0; c < columns; c += at.width)
            kernels_.norm(row(at.input, i) + c, nullptr, nullptr, stage.norm + (apart ? c : 0), at.eps, at.width,
                          row(at.output, i) + c);
    for (int i = share(rows, thread); !at.width && i < share(rows, thread + 1); i++)
        kernels_.norm(row(at.input, i), at.residual < 0 ? nullptr : row(at.residual, i),
                      at.residual_out < 0 ? nullptr : row(at.residual_out, i), stage.norm, at.eps, columns,
                      row(at.output, i));
}

void Executor::silu(const Stage &stage, int thread) {
    const int rows = stage_rows(stage), columns = widths_[(size_t)stage.at.output];
    for (int i = share(rows, thread); i < share(rows, thread + 1); i++) {
        const float *gate = row(stage.at.input, i);
        kernels_.silu_mul(gate, gate + columns, 1, 0, columns, row(stage.at.output, i), 0);
    }
}

void Executor::select(const Stage &stage, int thread) {
    const int rows = state_.in->num_draws;
    for (int i = share(rows, thread); i < share(rows, thread + 1); i++)
        memcpy(row(stage.at.output, i), row(stage.at.input, state_.in->draw_rows[i]),
               (size_t)widths_[(size_t)stage.at.input] * sizeof(float));
}

void Executor::cache_write(const Stage &stage, int thread) {
    const int dim = model_.head_dim, heads = model_.num_kv_heads;
    for (int i = share(state_.in->num_rows, thread); i < share(state_.in->num_rows, thread + 1); i++)
        for (int head = 0; head < heads; head++) {
            store_head(stage, i, head, row(stage.at.input, i) + head * dim);
            store_head(stage, i, heads + head, row(stage.at.residual, i) + head * dim);
        }
}

void Executor::rope_cache(const Stage &stage, int thread) {
    const int dim = model_.head_dim, heads = model_.num_heads + 2 * model_.num_kv_heads;
    for (int i = share(state_.in->num_rows, thread); i < share(state_.in->num_rows, thread + 1); i++)
        for (int head = 0; head < heads; head++) {
            memcpy(scratch_[(size_t)thread].tile, row(stage.at.input, i) + head * dim, (size_t)dim * sizeof(float));
            rope_head(stage, i, head, scratch_[(size_t)thread].tile);
        }
}

// Normalises, rotates and stores one head of one row: q first, then k, then v heads. Overwrites x.
void Executor::rope_head(const Stage &stage, int index, int head, float *x) {
    const int dim = model_.head_dim, kv_heads = model_.num_kv_heads;
    const size_t i = (size_t)index, angle = i * frequencies_.size() + (size_t)(stage.at.rope * (dim / 2));
    const float *norm = head < model_.num_heads ? stage.query_norm : head < model_.num_heads + kv_heads ? stage.key_norm : nullptr;
    if (norm) kernels_.norm(x, nullptr, nullptr, norm, stage.at.head_eps, dim, x);
    if (head < model_.num_heads + kv_heads) kernels_.rotate(x, &state_.cosine[angle], &state_.sine[angle], dim / 2);
    if (head < model_.num_heads)
        memcpy(row(stage.at.output, index) + head * dim, x, (size_t)dim * sizeof(float));
    else
        store_head(stage, index, head - model_.num_heads, x);
}

// `head` counts those of keys, then those of values.
void Executor::store_head(const Stage &stage, int index, int head, const float *x) {
    const int kv_heads = model_.num_kv_heads;
    const Cell cell = head < kv_heads ? key_cell(stage, index, head) : value_cell(stage, index, head - kv_heads);
    if (!store(cell, x)) set_fault(state_.sequence[(size_t)index]);
}

Cell Executor::key_cell(const Stage &stage, int row, int head) const {
    const int layer = stage.at.layer, inside = state_.position[(size_t)row] % cache_.block_size;
    const int64_t block = state_.block[is_local(layer)][(size_t)row];
    uint8_t *part = keys_of(layer) + block * cache_.key_block + head * cache_.key_head;
    uint16_t *scales = reinterpret_cast<uint16_t *>(part + cache_.key_scales);
    return {part + inside * cache_.number, cache_.key_stride, model_.codes ? scales + inside : nullptr};
}

Cell Executor::value_cell(const Stage &stage, int row, int head) const {
    const int layer = stage.at.layer, inside = state_.position[(size_t)row] % cache_.block_size;
    const int64_t block = state_.block[is_local(layer)][(size_t)row];
    uint8_t *part = values_of(layer) + block * cache_.value_block + head * cache_.value_head;
    uint16_t *scales = reinterpret_cast<uint16_t *>(part + cache_.value_scales);
    return {part + (int64_t)inside * cache_.value_stride * cache_.number, 1, model_.codes ? scales + inside : nullptr};
}

// False when not all is finite then.
bool Executor::store(const Cell &cell, const float *x) const {
    const int dim = model_.head_dim;
    if (cell.scale) return kernels_.store_codes(x, dim, cell.stride, reinterpret_cast<int8_t *>(cell.numbers), cell.scale);
    return kernels_.store_half(x, dim, cell.stride, reinterpret_cast<uint16_t *>(cell.numbers));
}

}  // namespace pf
