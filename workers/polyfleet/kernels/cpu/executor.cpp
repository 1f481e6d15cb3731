#include "executor.h"

#include <math.h>
#include <string.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <string>

#include "pack.h"

namespace pf {

namespace {

// An odd multiple of `unit`, a cache line of numbers: rows an even number of lines apart would share few cache sets.
int64_t row_stride(int64_t width, int64_t unit) { return round_up(width, unit) | unit; }

const double MOST_BYTES = 1e15;  // of a cache: no machine has as much, and sizes of more would not fit 64 bits

size_t align(size_t size) { return (size_t)round_up((int64_t)size, 64); }

}  // namespace

Entering::Entering(void *memory, int rows, int columns) : stride(columns) {
    const size_t cells = (size_t)rows * (size_t)columns;
    values = static_cast<float *>(memory);
    scale = values + cells;
    sum = scale + cells / GROUP;
    halves = reinterpret_cast<uint16_t *>(sum + cells / GROUP);
    codes = reinterpret_cast<int8_t *>(halves + cells);
}

size_t Entering::bytes(int rows, int columns) {
    const size_t cells = (size_t)rows * (size_t)columns;
    return cells * sizeof(float) + 2 * (cells / GROUP * sizeof(float)) + cells * sizeof(uint16_t) + cells;
}

Executor::Executor(const PfModel &model, const Kernels &kernels, int threads)
    : model_(model),
      kernels_(kernels),
      pool_(threads),
      frequencies_(model.inverse_frequencies, model.inverse_frequencies + model.num_ropes * (model.head_dim / 2)),
      amplitudes_(model.amplitudes, model.amplitudes + model.num_ropes * (model.head_dim / 2)),
      widths_(model.widths, model.widths + model.num_buffers),
      local_(model.local, model.local + model.num_layers),
      states_at_(1, 0) {
    for (int i = 0; i < model.num_states; i++) states_at_.push_back(states_at_.back() + model.states[i]);
    for (int width : widths_) strides_.push_back((int)row_stride(width, GROUP));
    for (int i = 0; i < model.num_weights; i++) weights_.push_back({model.weights[i], {}});
    model_.inverse_frequencies = model_.amplitudes = nullptr;
    model_.weights = nullptr;
    model_.widths = model_.states = model_.local = nullptr;
    buffers_.resize(strides_.size());
    pack_weights();
}

void Executor::pack_weights() {
    size_t size = 0;
    std::vector<size_t> offsets;
    for (Weight &weight : weights_) {
        offsets.push_back(size);
        if (!weight.source.packed) continue;
        Packed &packed = weight.packed = plan_packed(weight.source);
        size += align(data_bytes(packed)) + align(low_bytes(packed));
    }
    packed_ = Memory::on_huge_pages(size + 64);
    std::vector<bool> shared;
    for (const Weight &weight : weights_) shared.push_back(weight.source.packed && is_shared(weight.source));
    std::atomic<size_t> next{0};
    std::atomic<const char *> broken{nullptr};
    std::atomic<const char *> problem{nullptr};
    pool_.run([&](int) {
        for (size_t i; (i = next.fetch_add(1)) < weights_.size();) {
            PfWeight &source = weights_[i].source;
            if (!source.packed || broken) continue;
            if (const char *found = pack_weight(i, packed_.as<uint8_t>(offsets[i]))) problem = found, broken = source.name;
            // Not read again, unless an embedding shares it: so no more than one copy of the weights is ever in memory.
            if (source.data && !shared[i])
                page_out(source.data, (size_t)(row_bytes(source.format, source.columns) * source.rows));
        }
    });
    model_.read = nullptr;
    model_.done = nullptr;
    if (broken) throw std::invalid_argument(std::string("weight ") + broken.load() + problem.load());
    for (Weight &weight : weights_) {
        weight.source.name = nullptr;
        if (weight.source.packed) weight.source.data = nullptr;
    }
}

// What is wrong with the weight; null where it is packed now.
const char *Executor::pack_weight(size_t number, uint8_t *data) {
    Weight &weight = weights_[number];
    PfWeight source = weight.source;
    if (!source.data && !(source.data = model_.read((int32_t)number))) return " could not be read";
    const bool finite = pack(source, weight.packed, data, data + align(data_bytes(weight.packed)));
    if (!weight.source.data) model_.done((int32_t)number);
    return finite ? nullptr : " holds numbers that are not finite";
}

bool Executor::is_shared(const PfWeight &packed) const {
    return std::any_of(weights_.begin(), weights_.end(), [&](const Weight &other) {
        return !other.source.packed && packed.data && other.source.data == packed.data;
    });
}

void Executor::allocate(int num_blocks, int block_size, int rows, int slots, int local_blocks) {
    Cache cache = make_cache(num_blocks, block_size, local_blocks);
    if ((double)states_at_.back() * slots > MOST_BYTES) throw std::bad_alloc();
    Memory states((size_t)(states_at_.back() * slots) * sizeof(float));
    reserve(rows);
    cache_ = std::move(cache);
    states_ = std::move(states);
    num_slots_ = slots;
}

// Blocks are padded so that whole vectors may be read anywhere in them.
Cache Executor::make_cache(int num_blocks, int block_size, int local_blocks) const {
    Cache cache = {};
    cache.num_blocks = num_blocks;
    cache.local_blocks = local_blocks;
    cache.block_size = block_size;
    cache.number = model_.codes ? sizeof(int8_t) : sizeof(uint16_t);
    cache.key_stride = (int)round_up(block_size, GROUP);
    cache.value_stride = (int)round_up(model_.head_dim, GROUP);
    const int64_t scales = model_.codes ? cache.key_stride * (int64_t)sizeof(uint16_t) : 0;
    cache.key_scales = (int64_t)model_.head_dim * cache.key_stride * cache.number;
    cache.value_scales = (int64_t)block_size * cache.value_stride * cache.number;
    cache.key_head = cache.key_scales + scales;
    cache.value_head = cache.value_scales + scales;
    cache.key_block = model_.num_kv_heads * cache.key_head;
    cache.value_block = model_.num_kv_heads * cache.value_head;
    const int64_t block = cache.key_block + cache.value_block;
    if ((double)block * std::max(num_blocks, local_blocks) * model_.num_layers > MOST_BYTES) throw std::bad_alloc();
    int64_t blocks = 0;  // of all layers
    for (int layer = 0; layer < model_.num_layers; layer++) {
        cache.key_layer.push_back(cache.key_block * blocks);
        cache.value_layer.push_back(cache.value_block * blocks);
        blocks += local_blocks && local_[(size_t)layer] ? local_blocks : num_blocks;
    }
    const size_t spilled = 2 * GROUP * sizeof(uint16_t);  // read behind the last block
    cache.keys = Memory::on_huge_pages((size_t)(cache.key_block * blocks) + spilled);
    cache.values = Memory::on_huge_pages((size_t)(cache.value_block * blocks) + spilled);
    return cache;
}

int Executor::add_program(const PfStage *stages, int num_stages, const int32_t *operands, int num_operands) {
    auto program = std::make_unique<Program>();
    for (int i = 0; i < num_stages; i++) {
        Stage stage;
        stage.at = stages[i];
        if (stages[i].first_operand + 2 * stages[i].num_operands > num_operands)
            throw std::invalid_argument("a stage names operands that the program does not have");
        compile(stage, operands + stages[i].first_operand);
        program->stages.push_back(std::move(stage));
    }
    program->claimed = std::make_unique<std::atomic<int>[]>(2 * (size_t)num_stages);
    programs_.push_back(std::move(program));
    make_scratch();
    return (int)programs_.size() - 1;
}

void Executor::compile(Stage &stage, const int32_t *operands) {
    const PfStage &at = stage.at;
    auto vector = [&](int32_t weight) {
        return weight < 0 ? nullptr : (const float *)weights_[(size_t)weight].source.data;
    };
    stage.norm = vector(at.norm);
    stage.query_norm = vector(at.query_norm);
    stage.key_norm = vector(at.key_norm);
    stage.sinks = vector(at.sinks);
    if (at.kind == PF_EMBEDDING) {
        stage.table = &weights_[(size_t)operands[0]].source;
        vocabulary_ = std::min(vocabulary_, stage.table->rows);
    }
    if (at.kind == PF_LOOKUP) compile_lookup(stage, operands);
    const bool recurs = at.kind == PF_CAUSAL_CONV || at.kind == PF_DELTA_RULE || at.kind == PF_SSM_SCAN;
    if ((at.kind == PF_LAYER_NORM || at.kind == PF_ROUTE || recurs) && at.num_operands) stage.norm_bias = vector(operands[0]);
    if (at.kind == PF_SSM_SCAN) stage.skip = vector(operands[1]);
    if (recurs) stage.state = states_at_.at((size_t)at.layer);
    if (at.kind == PF_HEAD_LINEAR) compile_heads(stage, operands);
    if (at.kind == PF_EXPERTS) compile_experts(stage, operands);
    if (at.kind == PF_ADAPT) stage.sites.assign(operands, operands + 2 * at.num_operands);
    if (at.kind != PF_LINEAR) return;
    std::vector<std::vector<Piece>> pieces;
    int column = 0;
    for (int i = 0; i < at.num_operands; i++) {
        const Packed &weight = weights_[(size_t)operands[i]].packed;
        const float *biases = vector(operands[at.num_operands + i]);
        (weight.blocks ? stage.quantised : stage.dense) = true;
        stage.bf16 = stage.bf16 || (weight.kind == PACKED_BF16 && kernels_.round_bf16);
        stage.columns = weight.columns;
        widest_ = std::max(widest_, (int)row_stride(weight.columns, BLOCK));
        pieces.emplace_back();
        for (int group = 0; group < weight.groups; group++) {
            int row = group * GROUP, valid = std::min(GROUP, weight.rows - row);
            pieces.back().push_back({&weight, biases ? biases + row : nullptr, group, column + row, valid});
        }
        column += weight.rows;
    }
    order_pieces(stage, pieces);
}

void Executor::order_pieces(Stage &stage, const std::vector<std::vector<Piece>> &operands) {
    if (stage.at.epilogue == PF_THEN_SILU_MUL) {
        stage.unit = 2;
        for (size_t i = 0; i < operands[0].size(); i++) {
            stage.pieces.push_back(operands[0][i]);
            stage.pieces.push_back(operands[1][i]);
        }
    } else {
        if (stage.at.epilogue == PF_THEN_ROPE_CACHE) stage.unit = model_.head_dim / GROUP;
        for (const auto &pieces : operands) stage.pieces.insert(stage.pieces.end(), pieces.begin(), pieces.end());
    }
    stage.units = (int)stage.pieces.size() / stage.unit;
    deepest_unit_ = std::max(deepest_unit_, stage.unit);
}

void Executor::compile_lookup(Stage &stage, const int32_t *operands) {
    stage.table = &weights_[(size_t)operands[0]].source;
    const int behind = stage.table->rows - stage.at.first_row;
    if (stage.at.first_row < 0 || behind < 1) throw std::invalid_argument("a lookup begins outside its table");
    if (stage.at.width) most_positions_ = std::min(most_positions_, behind);
}

void Executor::compile_heads(Stage &stage, const int32_t *operands) {
    stage.gate = &weights_[(size_t)operands[0]].packed;
    stage.columns = widths_[(size_t)stage.at.input];
    stage.quantised = stage.gate->blocks > 0;
    stage.bf16 = kernels_.round_bf16 && stage.gate->kind == PACKED_BF16;
    widest_ = std::max(widest_, (int)row_stride(stage.columns, BLOCK));
}

void Executor::compile_experts(Stage &stage, const int32_t *operands) {
    const int stacks = stage.at.num_operands, up = stacks - 2;  // the gates' stack is the first of three
    auto packed = [&](int i) { return i < 0 ? nullptr : &weights_[(size_t)operands[i]].packed; };
    auto bias = [&](int i) {
        const int32_t weight = i < 0 ? -1 : operands[stacks + i];
        return weight < 0 ? nullptr : (const float *)weights_[(size_t)weight].source.data;
    };
    stage.gate = packed(up - 1), stage.up = packed(up), stage.down = packed(up + 1);
    stage.gate_bias = bias(up - 1), stage.up_bias = bias(up), stage.down_bias = bias(up + 1);
    stage.columns = stage.up->columns;
    stage.quantised = (stage.gate && stage.gate->blocks) || stage.up->blocks;
    stage.bf16 = kernels_.round_bf16 && ((stage.gate && stage.gate->kind == PACKED_BF16) || stage.up->kind == PACKED_BF16);
    widest_ = std::max(widest_, (int)row_stride(stage.columns, BLOCK));
    inside_width_ = std::max(inside_width_, (int)row_stride(stage.down->columns, BLOCK));
    most_visits_ = std::max(most_visits_, stage.at.top_k);
    deepest_unit_ = std::max(deepest_unit_, 2);
}

void Executor::make_scratch() {
    const size_t vectors = (size_t)(ATTENTION_ROWS * model_.num_heads / model_.num_kv_heads);
    const int rows = is_wide(WIDE_CHUNK) ? WIDE_CHUNK : ROW_CHUNK;
    const size_t tile = align((size_t)deepest_unit_ * GROUP * (size_t)rows * sizeof(float));
    const size_t attention = align(attention_scratch(model_.head_dim, (int)vectors) * sizeof(float));
    const bool latent = model_.value_dim < model_.head_dim;
    const size_t query = latent ? align(vectors * (size_t)model_.head_dim * sizeof(float)) : 0;
    scratch_.clear();
    for (int i = 0; i < pool_.size(); i++) {
        Scratch scratch;
        scratch.memory = Memory(tile + attention + query + Entering::bytes(rows, widest_));
        scratch.tile = scratch.memory.as<float>();
        scratch.attention = scratch.memory.as<float>(tile);
        scratch.query = scratch.memory.as<float>(tile + attention);
        scratch.entering = Entering(scratch.memory.as<char>(tile + attention + query), rows, widest_);
        scratch_.push_back(std::move(scratch));
    }
}

void Executor::reserve(int rows) {
    capacity_ = 0;
    const int64_t padded = round_up(rows, ROW_CHUNK);  // kernels may read whole tiles of them
    for (size_t i = 0; i < buffers_.size(); i++) buffers_[i] = Memory((size_t)(padded * strides_[i]) * sizeof(float));
    entering_memory_ = Memory(Entering::bytes((int)padded, widest_));  // what no program touches takes no memory
    entering_ = Entering(entering_memory_.as<void>(), (int)padded, widest_);
    const int visits = most_visits_ ? (int)padded * most_visits_ + ROW_CHUNK : 0;
    inside_memory_ = Memory(Entering::bytes(visits, inside_width_));
    inside_ = Entering(inside_memory_.as<void>(), visits, inside_width_);
    capacity_ = rows;
}

}  // namespace pf
