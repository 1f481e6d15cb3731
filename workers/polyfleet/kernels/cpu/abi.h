// The C ABI of the CPU library: what Python hands over by ctypes (library.py mirrors every struct).
//
// A program is a flat list of stages over numbered buffers of float32 rows. Python records it once from a KernelGraph
// (program.py, which also decides what is fused); every step runs a program from its first stage to its last.
#pragma once

#include <stdint.h>

#define PF_API extern "C" __attribute__((visibility("default")))

// Storage of a weight as it lies in a model file, or in blocks of kernels/weights/folder_blocks.py.
enum PfFormat : int32_t {
    PF_F32, PF_F16, PF_BF16, PF_Q8_0, PF_Q4_0, PF_Q4_1, PF_Q4_K, PF_Q6_K, PF_INT4, PF_INT8, PF_FP8, PF_NUM_FORMATS
};

enum PfStageKind : int32_t {
    PF_EMBEDDING,   // output[T] = rows of the first weight, looked up by token id
    PF_NORM,        // output = norm(input + residual); the sum goes to residual_out
    PF_LINEAR,      // output = epilogue(x @ weightsᵀ + biases) with x = input, or the norm of it as in PF_NORM
    PF_ROPE_CACHE,  // output = q of input, normalised and rotated; k (the same) and v of input go to the cache
    PF_ATTENTION,   // output = attention of q = input, of latent caches input and residual side by side, over the cache
    PF_SILU_MUL,    // output = silu(left half of input) * right half
    PF_SELECT,      // output[S] = the selected rows of input[T]
    PF_ADD,         // output = input + residual
    PF_MUL,         // output = input * residual
    PF_SILU,        // output = input * sigmoid(input)
    PF_RELU,        // output = max(input, 0)
    PF_GELU,        // output = input * Φ(input)
    PF_GELU_TANH,   // output = input * Φ(input), approximated by a tanh
    PF_SCALE,       // output = input * factor
    PF_SOFT_CAP,    // output = factor * tanh(input / factor)
    PF_LAYER_NORM,  // output = layer norm of input, by the weight `norm` and the only operand, its bias, if any
    PF_ROPE,        // output = each head of input, of `width` columns, rotated
    PF_HEAD_LINEAR,   // output = each of `width` heads of input by its own part of the only operand, a stack
    PF_LATENT_WRITE,  // input and residual side by side go to the cache, as key and as value
    PF_ROUTE,       // output[., experts] = shares of input = logits; the only operand, if any, is the weight that corrects
    PF_EXPERTS,     // output = the sum over experts of residual[., expert] * down(gated(gate(input), up(input))); operands:
                    // stacks of all experts' gates, ups and downs, or of ups and downs without gates; `factor` is the limit
    PF_ARGMAX,      // output = the column of the largest number of input, the first of equal ones or the first NaN
    PF_SIGMOID,     // output = 1 / (1 + exp(-input))
    PF_CAUSAL_CONV, // output = input over its sequence's last `width` rows, by the weight `norm` [column][tap], and
                    // the only operand, its bias, if any
    PF_DELTA_RULE,  // output = the gated delta rule of heads input = q, k, v and residual = rates, fades; `norm` and the
                    // only operand are its weights
    PF_LOOKUP,      // output[T] = rows of the only operand: `first_row`, and the step's positions from it on if `width`
    PF_ADAPT,       // output += what each row's adapter makes of input for the weights whose numbers are the operands, in
                    // place of whose biases stand their first columns in output
    PF_CACHE_WRITE, // k = input and v = residual go to the cache as they are
    PF_SSM_SCAN     // output = Mamba 2's recurrence of input = x, b, c and residual = steps; `norm` and both operands are its
                    // weights; its heads are those of StateSpace of graph/ops.py
};

enum PfEpilogue : int32_t { PF_STORE, PF_THEN_SILU_MUL, PF_THEN_ROPE_CACHE };

struct PfWeight {
    int32_t format, rows, columns;
    int32_t packed;    // whether a linear reads it; else it is read in place (embedding, norm, bias)
    const void *data;  // row after row; must outlive the executor unless packed; null: PfModel::read gives it
    const char *name;  // for messages
};

// Buffers and weights are indices; -1 means none.
struct PfStage {
    int32_t kind;
    int32_t input, residual, residual_out, output;
    int32_t norm;           // weight of the norm
    int32_t layer;          // whose cache, or whose state
    int32_t epilogue;       // of a linear
    int32_t selected;       // its rows are the S selected ones, not all T; of attention: its output's rows are
    int32_t first_operand;  // of an embedding or linear: operands[first_operand ...] are `num_operands` weights,
    int32_t num_operands;   // then as many biases
    int32_t sinks;          // of attention: a logit for each head that takes its share of every softmax, and has no value
    int32_t query_norm, key_norm;  // weights of the norms of heads before their rotation
    int32_t rope;           // of those of the model
    int32_t window;         // of attention: positions that a row sees, its own included; 0: all
    int32_t width;                       // of PF_NORM (of a head; 0: of rows), PF_ROPE, PF_HEAD_LINEAR, PF_CAUSAL_CONV, PF_LOOKUP
    int32_t first_row;                   // of PF_LOOKUP
    int32_t experts, top_k;              // of PF_ROUTE and PF_EXPERTS
    int32_t groups, top_groups, group_best;  // of PF_ROUTE: see Route of graph/ops.py
    int32_t sigmoid, renormalise;
    int32_t early;                       // of PF_EXPERTS: whether shares count in what gates and ups come to, not in downs
    int32_t key_heads, value_heads, key_width, value_width, turns;  // of PF_DELTA_RULE and, but `turns`, PF_SSM_SCAN: see graph/ops.py
    float eps;              // of a norm
    float head_eps;         // of the norms of heads
    float factor;           // of PF_SCALE, PF_SOFT_CAP, PF_ROUTE; of attention what its products are capped at, 0: nothing
};

struct PfModel {
    int32_t num_layers, num_heads, num_kv_heads, head_dim;
    int32_t value_dim;  // the first columns of a value that count; of a latent cache fewer than head_dim
    int32_t num_weights, num_buffers, num_ropes, num_states;
    int32_t causal;  // whether rows see no position behind their own, else all of their sequence's, which are in the step
    int32_t wide;  // whether long chunks of a prompt may be rounded to bfloat16; else a row computes to the same bits always
    int32_t codes;  // whether keys and values are kept as int8, with a scale for each position and head; else in half precision
    float attention_scale;
    const float *inverse_frequencies;  // [num_ropes][head_dim / 2]
    const float *amplitudes;           // the same shape: what cosines and sines are multiplied by
    const PfWeight *weights;
    const int32_t *widths;  // columns of each buffer
    const int32_t *states;  // numbers of each state of a slot
    const int32_t *local;   // [num_layers] whether its cache is in a pool of its own, where there are two
    const void *(*read)(int32_t weight);  // the data of a packed weight, from any thread; null where that fails
    void (*done)(int32_t weight);         // with what `read` gave
};

// One step, as engine/step/plan.py has it: rows are tokens, each sequence has a run of them, at its last positions.
struct PfStep {
    int32_t num_rows, num_sequences, num_draws, num_cleared;
    int32_t num_slots, table_width;
    int32_t logits;                 // buffer of the program's logits
    const int32_t *token_ids;       // [num_rows]
    const int32_t *slots;           // [num_sequences] rows of block_tables
    const int32_t *row_starts;      // [num_sequences + 1] first row of each sequence, then num_rows
    const int32_t *lengths;         // [num_sequences] positions up to the last row's
    const int32_t *draw_rows;       // [num_draws] the selected rows, whose logits are wanted
    const int32_t *cleared_blocks;  // [num_cleared] made 0 before anything is computed
    const int32_t *block_tables;    // [num_slots][table_width], a second pool's half behind the first's
    const int32_t *adapters;        // [num_slots] of each slot's sequence, or negative; null: no sequence has one
    int32_t *greedy_ids;            // out, unless null: [num_draws] id of each row's largest logit, the lowest of equal
                                    // ones; 0 where not all are finite
    int8_t *faults;                 // out: [num_sequences] 1 where a key or value of any row is not finite as it is kept
                                    // or, with greedy_ids, a logit of a selected row; else 0
    const float *given;             // [num_given][columns of the embedding] rows that stand in the place of embeddings,
    const int32_t *given_rows;      // and which of the step's they are, ascending
    int32_t num_given;
};

// What an adapter adds to one weight [rows][columns]: up @ down. Rows of both matrices come in groups of 16, padded with
// zeros. A group is its numbers and then the scale of each of its rows, in bfloat16, that they count times:
//   16 bits  numbers in half precision [column][16];
//    8 bits  codes [column / 4][16][4] that stand for themselves less 128;
//    4 bits  codes [column / 8][16][4] less 8: of two quads of columns, the second's in the high nibbles.
// Columns are padded to whole quads, or two of them; those of `down` in codes are a multiple of 32.
struct PfLowRank {
    int32_t site;  // the weight's number among operands of PF_ADAPT
    int32_t rank, rows, columns;
    int32_t bits;  // of a number: 16, 8 or 4
    const void *down, *up;
};

struct PfExecutor;

enum PfResult : int32_t { PF_OK, PF_REFUSED = -1, PF_NO_MEMORY = -2 };

// Counts the changes of this file that a library.py of before would misread: raise it there too.
const int32_t PF_ABI = 14;
PF_API int32_t pf_abi();

// A failing call returns null or a negative PfResult and leaves a sentence here, for the calling thread.
PF_API const char *pf_error();

// Names of the instruction sets that this processor and its operating system run, best first; the last is "plain".
PF_API const char *pf_instruction_sets();

// What runs linears over weights of `format` with an instruction set, in words.
PF_API const char *pf_linear_implementation(const char *instruction_set, int32_t format);

// Copies or repacks everything but the data of weights that are not packed.
PF_API PfExecutor *pf_executor_create(const PfModel *model, const char *instruction_set, int32_t threads);
PF_API void pf_executor_destroy(PfExecutor *executor);

// Adds a program; returns its number. Operands of all its stages are copied.
PF_API int32_t pf_executor_add_program(PfExecutor *executor, const PfStage *stages, int32_t num_stages,
                                     const int32_t *operands, int32_t num_operands);

// Bytes of all packed weights.
PF_API int64_t pf_executor_packed_bytes(const PfExecutor *executor);

// Makes a KV cache of zeros, states of so many slots, and room for steps of so many rows, in the place of those before.
// All programs come first.
PF_API int32_t pf_executor_allocate(PfExecutor *executor, int32_t num_blocks, int32_t block_size, int32_t rows, int32_t slots,
                                     int32_t local_blocks);  // of a second pool; 0: there is one

// Copies an adapter in the place of the one of that number; without parts that is freed. Not during a step.
PF_API int32_t pf_executor_set_adapter(PfExecutor *executor, int32_t number, const PfLowRank *parts, int32_t num_parts);

// Where keys and values lie, in half precision: [layer][block][kv head][head_dim][block_size rounded up to 16] and
// [layer][block][kv head][block_size][head_dim rounded up to 16]. Codes lie alike, in bytes, and behind those of each head of
// a block their scales: bfloat16 [block_size rounded up to 16].
PF_API uint8_t *pf_executor_keys(PfExecutor *executor);
PF_API uint8_t *pf_executor_values(PfExecutor *executor);

// Runs one program over one step; refuses, before anything is written, what would lead out of the executor's memory. Not
// thread-safe.
PF_API int32_t pf_executor_step(PfExecutor *executor, int32_t program, const PfStep *step);

// Rows of a buffer, to be written before a step where they are its inputs, and read after it, `widths[buffer]` rounded up to an odd multiple of 16 floats apart; valid until the next
// step.
PF_API float *pf_executor_buffer(PfExecutor *executor, int32_t buffer);

// Of numbers of 2 or 4 bytes anywhere in memory the largest magnitude, as bits; and of each whole 4,096 bytes the sum of
// their 64-bit words modulo 2^64, unless `sums` is null. One look at memory, from any thread. Unless `into` is null all is
// copied there first, and what is looked at is the copy.
PF_API uint32_t pf_scan(const void *data, int64_t num_bytes, int32_t number_bytes, uint64_t *sums, void *into);
