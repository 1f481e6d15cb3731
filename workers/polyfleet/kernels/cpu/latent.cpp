// Latent attention: one vector a token is both key and value for all heads. Its cache has it in the layouts of both, as
// the kernels of attention read them. And what stands around it: heads that turn by themselves, a matrix for each head.
#include <string.h>

#include <algorithm>

#include "executor.h"

namespace pf {

void Executor::rope(const Stage &stage, int thread) {
    const int columns = widths_[(size_t)stage.at.output], width = stage.at.width;
    for (int i = share(state_.in->num_rows, thread); i < share(state_.in->num_rows, thread + 1); i++) {
        const size_t angle = (size_t)i * frequencies_.size() + (size_t)(stage.at.rope * (model_.head_dim / 2));
        float *x = row(stage.at.output, i);
        memcpy(x, row(stage.at.input, i), (size_t)columns * sizeof(float));
        for (int c = 0; c < columns; c += width) kernels_.rotate(x + c, &state_.cosine[angle], &state_.sine[angle], width / 2);
    }
}

void Executor::latent_write(const Stage &stage, int thread) {
    const PfStage &at = stage.at;
    const int dim = model_.head_dim, latent = widths_[(size_t)at.input];
    float *x = scratch_[(size_t)thread].query;
    for (int i = share(state_.in->num_rows, thread); i < share(state_.in->num_rows, thread + 1); i++) {
        memcpy(x, row(at.input, i), (size_t)latent * sizeof(float));
        memcpy(x + latent, row(at.residual, i), (size_t)(dim - latent) * sizeof(float));
        const bool finite = store(key_cell(stage, i, 0), x);
        if (!store(value_cell(stage, i, 0), x) || !finite) set_fault(state_.sequence[(size_t)i]);
    }
}

// A span's query rows, each head's latent columns before its others.
const float *Executor::joined_query(const Stage &stage, const Span &span, float *to) const {
    const int heads = model_.num_heads, dim = model_.head_dim, latent = model_.value_dim, rest = dim - latent;
    for (int i = 0; i < span.rows; i++)
        for (int head = 0; head < heads; head++) {
            float *x = to + ((int64_t)i * heads + head) * dim;
            memcpy(x, row(stage.at.input, span.row + i) + head * latent, (size_t)latent * sizeof(float));
            memcpy(x + latent, row(stage.at.residual, span.row + i) + head * rest, (size_t)rest * sizeof(float));
        }
    return to;
}

// A piece is some groups of 16 columns of some heads, for all rows.
void Executor::head_linear(const Stage &stage, std::atomic<int> &claimed, int thread) {
    const int rows = stage_rows(stage), heads = stage.at.width, width = stage.columns / heads;
    const bool prepared = stage.quantised || stage.bf16;
    for (int i = share(rows, thread); prepared && i < share(rows, thread + 1); i++)
        for (int head = 0; head < heads; head++) {  // rows of one head lie behind each other
            const float *x = row(stage.at.input, i) + head * width;
            const int64_t place = (int64_t)head * rows + i, block = place * (width / BLOCK);
            if (stage.quantised)
                kernels_.quantise(x, width, entering_.codes + place * width, entering_.scale + block, entering_.sum + block);
            if (stage.bf16) kernels_.round_bf16(x, width, entering_.halves + place * round_up(width, 2));
        }
    if (prepared) pool_.barrier();
    const Packed &weight = *stage.gate;
    const int units = weight.groups, groups = units / heads, step = std::max(1, units / (UNITS_PER_THREAD * pool_.size()));
    for (int begin; (begin = claimed.fetch_add(step, std::memory_order_relaxed)) < units;)
        for (int unit = begin; unit < std::min(begin + step, units); unit++) {
            const int head = unit / groups;
            const int64_t place = (int64_t)head * rows, block = place * (width / BLOCK);
            const Rows from = {row(stage.at.input, 0) + head * width, strides_[(size_t)stage.at.input], entering_.codes + place * width,
                               entering_.scale + block, entering_.sum + block, width,
                               entering_.halves + place * round_up(width, 2), (int)round_up(width, 2)};
            for (int at = 0; at < rows; at += ROW_CHUNK) {
                const Outputs outputs = {&weight, unit, row(stage.at.output, at) + unit * GROUP};
                multiply(&outputs, 1, from, at, std::min(ROW_CHUNK, rows - at), strides_[(size_t)stage.at.output]);
            }
        }
}

}  // namespace pf
