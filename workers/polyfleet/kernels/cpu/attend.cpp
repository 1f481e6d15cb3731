// Attention: which thread reads which part of the cache for which rows.
#include <algorithm>

#include "executor.h"

namespace pf {

namespace {

const int FEW_UNITS_PER_THREAD = 4;      // fewer units of work are split by position, so that threads end together
const int64_t MAX_PARTIALS = 1 << 24;  // floats: what is beyond is not split

}  // namespace

void Executor::prepare_spans(const PfStep &step) {
    state_.spans.clear();
    state_.selected_spans.clear();
    for (int sequence = step.num_sequences - 1; sequence >= 0; sequence--) {  // prompts come last and cost most
        const int begin = step.row_starts[sequence], count = step.row_starts[sequence + 1] - begin;
        for (int at = (count - 1) / ATTENTION_ROWS * ATTENTION_ROWS; at >= 0; at -= ATTENTION_ROWS)
            state_.spans.push_back({sequence, begin + at, std::min(ATTENTION_ROWS, count - at), begin + at});
    }
    for (int i = 0; i < step.num_draws; i++) {
        const int row = step.draw_rows[i];
        state_.selected_spans.push_back({state_.sequence[(size_t)row], row, 1, i});
    }
    const int64_t size = std::max(split(state_.spans), split(state_.selected_spans));
    if ((int64_t)state_.partials.size() < size) state_.partials.resize((size_t)size);
    const size_t spans = std::max(state_.spans.size(), state_.selected_spans.size());
    if (state_.num_finished < spans * (size_t)model_.num_kv_heads) {
        state_.num_finished = spans * (size_t)model_.num_kv_heads;
        state_.finished = std::make_unique<std::atomic<int>[]>(state_.num_finished);
        for (size_t i = 0; i < state_.num_finished; i++) state_.finished[i].store(0, std::memory_order_relaxed);
    }
}

// Decides which spans are computed part by part; returns the floats that partial results take. Results are the same.
int64_t Executor::split(std::vector<Span> &spans) {
    const int vectors = model_.num_heads / model_.num_kv_heads, threads = pool_.size();
    const bool few = threads > 1 && (int64_t)spans.size() * model_.num_kv_heads < FEW_UNITS_PER_THREAD * threads;
    int64_t size = 0;
    for (Span &span : spans) {
        span.parts = few ? (context(span) + ATTENTION_PART - 1) / ATTENTION_PART : 1;
        span.partial = size;
        span.partial_size = (int64_t)attention_partial(model_.head_dim, span.rows * vectors);
        const int64_t added = span.parts * model_.num_kv_heads * span.partial_size;
        if (span.parts == 1 || size + added > MAX_PARTIALS)
            span.parts = 1;
        else
            size += added;
    }
    return size;
}

void Executor::attend(const Stage &stage, std::atomic<int> &claimed, int thread) {
    const std::vector<Span> &spans = stage.at.selected ? state_.selected_spans : state_.spans;
    const int kv_heads = model_.num_kv_heads;
    int unit = claimed.fetch_add(1, std::memory_order_relaxed), first = 0;  // of the span's units
    for (size_t i = 0; i < spans.size(); i++) {
        const int units = spans[i].parts * kv_heads;
        for (; unit < first + units; unit = claimed.fetch_add(1, std::memory_order_relaxed)) {
            const int kv_head = (unit - first) / spans[i].parts, part = (unit - first) % spans[i].parts;
            attend_part(stage, spans[i], state_.finished[i * (size_t)kv_heads + (size_t)kv_head], kv_head, part, thread);
        }
        first += units;
    }
}

void Executor::attend_part(const Stage &stage, const Span &span, std::atomic<int> &finished, int kv_head, int part,
                         int thread) {
    Attention a;
    a.rows = span.rows;
    a.heads = model_.num_heads / model_.num_kv_heads;
    a.head_dim = model_.head_dim;
    a.value_dim = model_.value_dim;
    a.sinks = stage.sinks ? stage.sinks + kv_head * a.heads : nullptr;
    const bool latent = stage.at.residual >= 0;
    a.query = latent ? joined_query(stage, span, scratch_[(size_t)thread].query) : row(stage.at.input, span.row) + kv_head * a.heads * a.head_dim;
    a.out = row(stage.at.output, span.out) + kv_head * a.heads * a.value_dim;
    a.query_stride = latent ? a.heads * a.head_dim : strides_[(size_t)stage.at.input];
    a.out_stride = strides_[(size_t)stage.at.output];
    const int context = this->context(span);
    a.position = model_.causal ? state_.position[(size_t)span.row] : context - 1;
    a.begin = part * ATTENTION_PART;
    a.end = span.parts > 1 ? std::min(context, a.begin + ATTENTION_PART) : context;
    a.scale = model_.attention_scale;
    a.window = stage.at.window;
    a.cap = stage.at.factor;
    a.keys = keys_of(stage.at.layer) + kv_head * cache_.key_head;
    a.values = values_of(stage.at.layer) + kv_head * cache_.value_head;
    a.codes = model_.codes;
    a.key_block = cache_.key_block, a.value_block = cache_.value_block;
    a.key_scales = cache_.key_scales, a.value_scales = cache_.value_scales;
    a.key_stride = cache_.key_stride, a.value_stride = cache_.value_stride;
    a.block_size = cache_.block_size;
    a.wide = is_wide(state_.in->row_starts[span.sequence + 1] - state_.in->row_starts[span.sequence]);
    a.table = table(*state_.in, span.sequence, is_local(stage.at.layer));
    a.scratch = scratch_[(size_t)thread].attention;
    float *partials = state_.partials.data() + span.partial + (int64_t)kv_head * span.parts * span.partial_size;
    a.partial = span.parts > 1 ? partials + part * span.partial_size : nullptr;
    kernels_.attend(a);
    if (span.parts > 1 && finished.fetch_add(1, std::memory_order_acq_rel) == span.parts - 1) {
        finished.store(0, std::memory_order_relaxed);
        a.partial = partials;
        kernels_.combine(a, span.parts);
    }
}

}  // namespace pf
