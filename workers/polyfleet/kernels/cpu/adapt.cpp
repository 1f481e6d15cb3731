// Low-rank adapters: what each row's adapter adds to a linear's results. A piece of work is some rows of one adapter and
// one or all of the linear's weights.
#include <string.h>

#include <algorithm>
#include <stdexcept>

#include "executor.h"

namespace pf {

namespace {

const int CACHE_LINE = 64;  // bytes; matrices begin at whole lines

size_t matrix_bytes(int32_t bits, int32_t rows, int32_t columns) {
    return (size_t)(round_up(rows, GROUP) / GROUP) * low_rank_bytes(bits, columns);
}

void check_part(const PfLowRank &part) {
    const bool codes = part.bits == 8 || part.bits == 4;
    if (part.site < 0 || part.rank < 1 || part.rows < 1 || part.columns < 1 || (!codes && part.bits != 16) ||
        (codes && part.columns % BLOCK))
        throw std::invalid_argument("an adapter's sizes are out of range");
}

}  // namespace

void Executor::set_adapter(int number, const PfLowRank *parts, int num_parts) {
    if (number < 0) throw std::invalid_argument("adapters are numbered from 0");
    auto adapter = std::make_unique<Adapter>();
    size_t size = CACHE_LINE, room = 0;
    for (int i = 0; i < num_parts; i++) {
        const PfLowRank &part = parts[i];
        check_part(part);
        size += matrix_bytes(part.bits, part.rank, part.columns) + matrix_bytes(part.bits, part.rows, part.rank) + 2 * CACHE_LINE;
        adapter->parts.resize(std::max(adapter->parts.size(), (size_t)part.site + 1));
        room = std::max(room, low_rank_room(part.rank));
    }
    adapter->memory = Memory::on_huge_pages(size);
    uint8_t *next = adapter->memory.as<uint8_t>();
    auto copy = [&](const void *matrix, size_t bytes) {
        uint8_t *to = next;
        memcpy(to, matrix, bytes);
        next += round_up((int64_t)bytes, CACHE_LINE);
        return to;
    };
    for (int i = 0; i < num_parts; i++) {
        const PfLowRank &part = parts[i];
        LowRank &out = adapter->parts[(size_t)part.site];
        out = {part.rank, part.rows, part.columns, part.bits, nullptr, nullptr};
        out.down = copy(part.down, matrix_bytes(part.bits, part.rank, part.columns));
        out.up = copy(part.up, matrix_bytes(part.bits, part.rows, part.rank));
    }
    low_rank_.resize((size_t)pool_.size());
    for (auto &each : low_rank_) each.resize(std::max(each.size(), room));
    if (adapters_.size() <= (size_t)number) adapters_.resize((size_t)number + 1);
    adapters_[(size_t)number] = num_parts ? std::move(adapter) : nullptr;
}

// Rows of each adapter behind each other, cut into pieces.
void Executor::prepare_adapted(const PfStep &step, bool selected, Adapted &adapted) {
    adapted.rows.clear();
    adapted.runs.clear();
    if (!step.adapters) return;
    const int count = selected ? step.num_draws : step.num_rows;
    auto adapter_of = [&](int i) {
        const int row = selected ? step.draw_rows[i] : i;
        return step.adapters[step.slots[state_.sequence[(size_t)row]]];
    };
    for (int i = 0; i < count; i++)
        if (adapter_of(i) >= 0) adapted.rows.push_back(i);
    std::stable_sort(adapted.rows.begin(), adapted.rows.end(), [&](int a, int b) { return adapter_of(a) < adapter_of(b); });
    for (int i = 0; i < (int)adapted.rows.size(); i++) {
        const int adapter = adapter_of(adapted.rows[(size_t)i]);
        if (adapted.runs.empty() || adapted.runs.back().adapter != adapter || adapted.runs.back().count == ADAPTED_ROWS)
            adapted.runs.push_back({adapter, i, 0});
        adapted.runs.back().count++;
    }
}

void Executor::adapt(const Stage &stage, std::atomic<int> &claimed, int thread) {
    const Adapted &adapted = stage.at.selected ? state_.selected_adapted : state_.adapted;
    const int sites = stage.at.num_operands, runs = (int)adapted.runs.size();
    const int together = runs >= RUNS_PER_THREAD * pool_.size() ? sites : 1;
    for (const AdaptedRun &run : adapted.runs) {  // what adapters know of this linear has left the caches
        const auto &parts = adapters_[(size_t)run.adapter]->parts;
        if ((size_t)stage.sites[0] < parts.size()) __builtin_prefetch(&parts[(size_t)stage.sites[0]]);
    }
    for (int piece; (piece = claimed.fetch_add(together, std::memory_order_relaxed)) < runs * sites;)
        adapt_run(stage, adapted, adapted.runs[(size_t)(piece / sites)], piece % sites, together, thread);
}

// `count` of the linear's weights, from `first` on, for the rows of a run: these are codes once for all weights.
void Executor::adapt_run(const Stage &stage, const Adapted &adapted, const AdaptedRun &run, int first, int count, int thread) {
    const auto &parts = adapters_[(size_t)run.adapter]->parts;
    const int columns = widths_[(size_t)stage.at.input], blocks = columns / BLOCK, sites = stage.at.num_operands;
    const bool entered = shares_codes(stage);
    const Entering &from = entered ? entering_ : scratch_[(size_t)thread].entering;
    bool made = entered;
    for (int i = first; i < first + count; i++) {
        const size_t site = (size_t)stage.sites[(size_t)i];
        if (site >= parts.size() || !parts[site].rows) continue;
        const LowRank &part = parts[site];
        for (int r = 0; r < run.count; r++) {
            const int at = adapted.rows[(size_t)(run.first + r)], place = entered ? at : r;
            const float *values = row(stage.at.input, at);
            int8_t *codes = from.codes + (int64_t)place * columns;
            float *scale = from.scale + place * blocks, *sum = from.sum + place * blocks;
            if (part.bits != 16 && !made) kernels_.quantise(values, columns, codes, scale, sum);
            const Rows x = {values, 0, codes, scale, sum, columns, nullptr, 0};
            float *y = row(stage.at.output, at) + stage.sites[(size_t)(sites + i)];
            kernels_.low_rank[part.bits / 8](part, x, low_rank_[(size_t)thread].data(), y);
        }
        made = made || part.bits != 16;
    }
}

}  // namespace pf
