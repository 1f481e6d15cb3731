// Low-rank adapters: what each row's adapter adds to a linear's results. A piece of work is some rows of one adapter and
// one of the linear's weights.
#include <string.h>

#include <algorithm>
#include <stdexcept>

#include "executor.h"

namespace pf {

namespace {

size_t padded(int64_t count) { return (size_t)round_up(count, GROUP); }

// Columns of codes come in fours.
size_t stored_columns(const PfLowRank &part, int32_t columns) { return part.bytes == 1 ? (size_t)round_up(columns, 4) : (size_t)columns; }

// Copies groups, each behind its scales, to `to`; returns where they end.
uint8_t *copy_groups(uint8_t *to, int64_t rows, const void *numbers, size_t group_bytes, const float *scale) {
    for (size_t group = 0; group < padded(rows) / GROUP; group++) {
        memcpy(to, scale + group * GROUP, GROUP * sizeof(float));
        memcpy(to + GROUP * sizeof(float), (const uint8_t *)numbers + group * group_bytes, group_bytes);
        to += GROUP * sizeof(float) + group_bytes;
    }
    return to;
}

}  // namespace

void Executor::set_adapter(int number, const PfLowRank *parts, int num_parts) {
    if (number < 0) throw std::invalid_argument("adapters are numbered from 0");
    auto adapter = std::make_unique<Adapter>();
    size_t size = 64, room = 0;
    for (int i = 0; i < num_parts; i++) {
        const PfLowRank &part = parts[i];
        if (part.site < 0 || part.rank < 1 || part.rows < 1 || part.columns < 1 ||
            (part.bytes != 1 && part.bytes != 2) || (part.bytes == 1 && part.columns % BLOCK))
            throw std::invalid_argument("an adapter's sizes are out of range");
        size += padded(part.rank) * (sizeof(float) + stored_columns(part, part.columns) * (size_t)part.bytes);
        size += padded(part.rows) * (sizeof(float) + stored_columns(part, part.rank) * (size_t)part.bytes);
        adapter->parts.resize(std::max(adapter->parts.size(), (size_t)part.site + 1));
        room = std::max(room, low_rank_room(part.columns, part.rank));
    }
    adapter->memory = Memory::on_huge_pages(size);
    uint8_t *next = adapter->memory.as<uint8_t>();
    for (int i = 0; i < num_parts; i++) {
        const PfLowRank &part = parts[i];
        const size_t column = (size_t)(GROUP * part.bytes);
        LowRank &out = adapter->parts[(size_t)part.site];
        out.rank = part.rank, out.rows = part.rows, out.columns = part.columns, out.bytes = part.bytes;
        out.down = next;
        out.up = copy_groups(next, part.rank, part.down, column * stored_columns(part, part.columns), part.down_scale);
        next = copy_groups(out.up, part.rows, part.up, column * stored_columns(part, part.rank), part.up_scale);
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
    const int sites = stage.at.num_operands, pieces = (int)adapted.runs.size() * sites;
    float *room = low_rank_[(size_t)thread].data();
    for (int piece; (piece = claimed.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
        const AdaptedRun &run = adapted.runs[(size_t)(piece / sites)];
        const auto &parts = adapters_[(size_t)run.adapter]->parts;
        const size_t site = (size_t)stage.sites[(size_t)(piece % sites)];
        if (site >= parts.size() || !parts[site].rows) continue;
        const int column = stage.sites[(size_t)(sites + piece % sites)];
        for (int i = run.first; i < run.first + run.count; i++) {
            const int at = adapted.rows[(size_t)i];
            kernels_.low_rank[parts[site].bytes - 1](parts[site], row(stage.at.input, at), room, row(stage.at.output, at) + column);
        }
    }
}

}  // namespace pf
