// The executor: packed weights, programs compiled from stages, the KV cache, and one step over them.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "abi.h"
#include "kernels.h"
#include "memory.h"
#include "pool.h"
#include "tuning.h"

namespace pf {

struct Weight {
    PfWeight source;
    Packed packed;
};

// One group of 16 rows of one operand of a linear, and where its results go.
struct Piece {
    const Packed *weight;
    const float *bias;  // of this group's rows, or null
    int group, column, valid;
};

struct Stage {
    PfStage at;
    const PfWeight *table = nullptr;  // of an embedding or lookup
    int64_t state = 0;  // where its numbers begin in a slot's
    const float *norm = nullptr, *norm_bias = nullptr, *skip = nullptr, *query_norm = nullptr, *key_norm = nullptr, *sinks = nullptr;
    std::vector<Piece> pieces;  // of a linear: `unit` of them make one unit of work
    int unit = 1, units = 0;
    int columns = 0;  // entering a linear
    bool quantised = false, dense = false, bf16 = false;  // what its weights read
    const Packed *gate = nullptr, *up = nullptr, *down = nullptr;  // of experts, `up` alone without gates; `gate` of heads
    const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
    std::vector<int32_t> sites;  // of an adapt: its operands
};

struct Program {
    std::vector<Stage> stages;
    std::unique_ptr<std::atomic<int>[]> claimed;  // twice per stage: pieces of work taken by threads so far
};

// Keys and values in half precision, or as codes with scales; see Attention in kernels.h for the layout inside a block.
struct Cache {
    Memory keys, values;
    int num_blocks, block_size;
    int local_blocks;  // of the second pool, of layers with a window; 0: all are in the first
    int number;        // bytes of one: 2, or 1 of codes
    int key_stride, value_stride;                 // numbers
    int64_t key_scales, value_scales;             // bytes from the begin of a head's part of a block to its scales,
    int64_t key_head, value_head;                 // between such parts,
    int64_t key_block, value_block;               // between blocks,
    std::vector<int64_t> key_layer, value_layer;  // and to where each layer begins
};

// A key or value of one row and head: its numbers, and their scale where they are codes.
struct Cell {
    uint8_t *numbers;
    int stride;
    uint16_t *scale;
};

// Some query rows of one sequence: work for one thread, once per key-value head and part.
struct Span {
    int sequence, row, rows;
    int out;             // row of the output that its first row goes to
    int parts = 1;  // units of work, one for each ATTENTION_PART positions that it sees; 1: all of them together
    int64_t partial = 0, partial_size = 0;  // where its partial results begin, [kv head][part][partial_size]
};

// The largest logit in one thread's share of a row; `id` is -1 for a share without logits.
struct Largest {
    int id;
    float logit;
    bool finite;
};

// Consecutive rows that go through a linear together; they are rounded to bfloat16 when `wide`.
struct Run {
    int first, count;
    bool wide;
};

// A row that goes to an expert, and its share there.
struct Visit {
    int row;
    float share;
};

// Some visits of one expert, which go through it together; `in_place`: their rows are neighbours, in order.
struct Visits {
    int expert, first, count;
    bool in_place;
};

struct Adapter {
    Memory memory;               // of all parts, in the order of their use
    std::vector<LowRank> parts;  // by the number of the weight that each changes; those without rows change nothing
};

// Rows `first` ... of an Adapted's, which have the same adapter.
struct AdaptedRun {
    int adapter, first, count;
};

struct Adapted {
    std::vector<int> rows;  // by adapter
    std::vector<AdaptedRun> runs;
};

// What a step knows of its rows, made before its first stage.
struct StepState {
    const PfStep *in;
    std::vector<int> position, sequence;        // of each row
    std::vector<int32_t> block[2];  // that each row's keys and values go to, in each pool
    std::vector<float> cosine, sine;            // [row][rope][head_dim / 2]
    std::vector<Run> runs, selected_runs;       // for linears over all rows, over the selected ones
    std::vector<Span> spans, selected_spans;    // for attention of all rows, of the selected ones
    std::vector<float> partials;
    std::unique_ptr<std::atomic<int>[]> finished;  // parts done, per span and key-value head; 0 between stages
    size_t num_finished = 0;
    std::vector<Visit> visits;       // of the experts at hand, by expert
    std::vector<Visits> visited;
    std::vector<Largest> largest;  // [selected row][thread]
    Adapted adapted, selected_adapted;  // of all rows, of the selected ones
};

// Room for rows that enter a linear, `stride` apart, in every form that kernels read.
struct Entering {
    int stride;
    float *values;
    int8_t *codes;
    float *scale, *sum;
    uint16_t *halves;

    static size_t bytes(int rows, int stride);
    Entering() = default;
    Entering(void *memory, int rows, int stride);
};

class Executor {
public:
    Executor(const PfModel &model, const Kernels &kernels, int threads);
    int add_program(const PfStage *stages, int num_stages, const int32_t *operands, int num_operands);
    void allocate(int num_blocks, int block_size, int rows, int slots, int local_blocks);
    void step(int program, const PfStep &step);
    void set_adapter(int number, const PfLowRank *parts, int num_parts);
    size_t packed_bytes() const { return packed_.size(); }
    const Cache &cache() const { return cache_; }
    float *buffer(int index) { return buffers_[(size_t)index].as<float>(); }

private:
    struct Scratch {
        Memory memory;
        float *tile;  // results of one unit
        float *attention;
        float *query;  // of a latent cache, joined
        std::vector<float> recurrent;  // rows of a convolution, or a change of a state
        Entering entering;  // a chunk of rows of its own
    };

    // Set-up (executor.cpp).
    void pack_weights();
    const char *pack_weight(size_t number, uint8_t *data);
    bool is_shared(const PfWeight &packed) const;
    Cache make_cache(int num_blocks, int block_size, int local_blocks) const;
    void make_scratch();
    void reserve(int rows);
    void compile(Stage &stage, const int32_t *operands);
    void compile_lookup(Stage &stage, const int32_t *operands);
    void compile_heads(Stage &stage, const int32_t *operands);
    void compile_experts(Stage &stage, const int32_t *operands);
    void order_pieces(Stage &stage, const std::vector<std::vector<Piece>> &operands);

    // A step (step.cpp).
    void check(const PfStep &step) const;
    void clear_blocks(const PfStep &step);
    void prepare_rows(const PfStep &step);
    void prepare_runs(const PfStep &step);
    void prepare_spans(const PfStep &step);
    int64_t split(std::vector<Span> &spans);
    void find_angles(int thread);
    void run(Program &program, int thread);
    void embed(const Stage &stage, int thread);
    void look_up(const Stage &stage, int thread);
    void normalise(const Stage &stage, int thread);
    void silu(const Stage &stage, int thread);
    void select(const Stage &stage, int thread);
    void find_largest(int thread);
    void choose_largest(const PfStep &step);
    void rope_cache(const Stage &stage, int thread);
    void rope_head(const Stage &stage, int row, int head, float *x);
    void cache_write(const Stage &stage, int thread);
    void store_head(const Stage &stage, int row, int head, const float *x);
    Cell key_cell(const Stage &stage, int row, int head) const;
    Cell value_cell(const Stage &stage, int row, int head) const;
    bool store(const Cell &cell, const float *x) const;

    // Plain ops, row by row (plain.cpp).
    void compute_rows(const Stage &stage, int thread);

    // Latent attention (latent.cpp).
    void rope(const Stage &stage, int thread);
    void latent_write(const Stage &stage, int thread);
    void head_linear(const Stage &stage, std::atomic<int> &claimed, int thread);
    const float *joined_query(const Stage &stage, const Span &span, float *to) const;

    // Mixtures of experts (experts.cpp).
    void route(const Stage &stage, int thread);
    void experts(const Stage &stage, std::atomic<int> &entered, std::atomic<int> &left, int thread);
    void list_visits(const Stage &stage);
    void enter_experts(const Stage &stage, std::atomic<int> &claimed, int thread);
    void leave_experts(const Stage &stage, std::atomic<int> &claimed, int thread);
    Rows gather(const Stage &stage, const Visits &visits, const Entering &to) const;

    // Recurrent state (recurrent.cpp).
    float *state_of(const Stage &stage, int sequence);
    void causal_conv(const Stage &stage, std::atomic<int> &claimed, int thread);
    void delta_rule(const Stage &stage, std::atomic<int> &claimed, int thread);
    void ssm_scan(const Stage &stage, std::atomic<int> &claimed, int thread);

    // Adapters (adapt.cpp).
    void prepare_adapted(const PfStep &step, bool selected, Adapted &adapted);
    void adapt(const Stage &stage, std::atomic<int> &claimed, int thread);
    void adapt_run(const Stage &stage, const Adapted &adapted, const AdaptedRun &run, int first, int count, int thread);

    // Linears (linear.cpp).
    void linear(const Stage &stage, std::atomic<int> &claimed, int thread);
    bool shares_codes(const Stage &stage) const;
    void linear_by_rows(const Stage &stage, const std::vector<Run> &runs, std::atomic<int> &claimed, int thread);
    void linear_by_units(const Stage &stage, const std::vector<Run> &runs, std::atomic<int> &claimed, int thread);
    Rows entering_rows(const Stage &stage, const Entering &from, int first, bool wide) const;
    void enter_row(const Stage &stage, int index, const Entering &to, int place, bool wide, bool keep_total);
    void run_units(const Stage &stage, const Rows &rows, int at, int begin, int end, int first, int count, Scratch &scratch);
    void run_unit(const Stage &stage, const Rows &rows, int at, int unit, int first, int count, Scratch &scratch);
    void multiply(const Outputs *outputs, int num_outputs, const Rows &rows, int first, int count, int out_stride);
    void finish_unit(const Stage &stage, int unit, int first, int count, float *tile);

    // Attention (attend.cpp).
    void attend(const Stage &stage, std::atomic<int> &claimed, int thread);
    void attend_part(const Stage &stage, const Span &span, std::atomic<int> &finished, int kv_head, int part, int thread);

    float *row(int buffer, int64_t index) const {
        return buffers_[(size_t)buffer].as<float>() + index * strides_[(size_t)buffer];
    }
    // Positions that a span's rows see, all together.
    int context(const Span &span) const {
        return model_.causal ? state_.position[(size_t)span.row] + span.rows : state_.in->lengths[span.sequence];
    }
    // Blocks of a sequence at most.
    int table_blocks(const PfStep &step) const { return cache_.local_blocks ? step.table_width / 2 : step.table_width; }
    const int32_t *table(const PfStep &step, int sequence, bool local) const {
        const int32_t *first = step.block_tables + (int64_t)step.slots[sequence] * step.table_width;
        return local ? first + table_blocks(step) : first;
    }
    bool is_local(int layer) const { return cache_.local_blocks && local_[(size_t)layer]; }
    uint8_t *keys_of(int layer) const { return cache_.keys.as<uint8_t>((size_t)cache_.key_layer[(size_t)layer]); }
    uint8_t *values_of(int layer) const { return cache_.values.as<uint8_t>((size_t)cache_.value_layer[(size_t)layer]); }
    int stage_rows(const Stage &stage) const { return stage.at.selected ? state_.in->num_draws : state_.in->num_rows; }
    bool is_wide(int rows) const { return model_.wide && kernels_.wide_rows && rows >= kernels_.wide_rows; }
    void set_fault(int sequence) { __atomic_store_n(&state_.in->faults[sequence], 1, __ATOMIC_RELAXED); }
    // The share of `count` that belongs to a thread.
    int share(int count, int thread) const { return (int)((int64_t)count * thread / pool_.size()); }

    PfModel model_;  // its pointers are null
    const Kernels &kernels_;
    Pool pool_;
    std::vector<float> frequencies_, amplitudes_;  // [rope][head_dim / 2]
    std::vector<int32_t> local_;  // of each layer
    std::vector<Weight> weights_;
    Memory packed_;
    std::vector<std::unique_ptr<Program>> programs_;
    std::vector<int> widths_, strides_;  // of buffers: columns, and floats between rows
    std::vector<Memory> buffers_;
    int capacity_ = 0;  // rows of buffers
    Cache cache_ = {};
    std::vector<int64_t> states_at_;  // where each state begins among a slot's numbers; how many these are, at last
    Memory states_;                   // [slot][number]
    int num_slots_ = 0;
    std::vector<Scratch> scratch_;
    Memory entering_memory_;
    Entering entering_ = {};  // rows entering a linear, shared by threads
    Memory inside_memory_;
    Entering inside_ = {};  // rows inside experts, one for each visit
    int most_visits_ = 0, inside_width_ = 0;  // of a row; columns inside experts
    int vocabulary_ = INT32_MAX;  // rows of the smallest embedding
    int most_positions_ = INT32_MAX;  // of a sequence, that all lookups have rows for
    int widest_ = BLOCK, deepest_unit_ = 1;  // most columns that enter a linear; most pieces of a unit
    std::vector<std::unique_ptr<Adapter>> adapters_;
    std::vector<std::vector<float>> low_rank_;  // of each thread: see low_rank_room
    StepState state_;
};

}  // namespace pf
