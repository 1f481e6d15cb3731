#include "abi.h"

#include <exception>
#include <string>

#include "executor.h"
#include "instruction_sets.h"
#include "pack.h"

struct PfExecutor {
    pf::Executor executor;
};

namespace {

thread_local std::string last_error;

template <typename T, typename F>
T guarded(T refused, T no_memory, F call) {
    try {
        return call();
    } catch (const std::bad_alloc &) {
        last_error = "not enough memory";
        return no_memory;
    } catch (const std::exception &error) {
        last_error = error.what();
        return refused;
    }
}

template <typename F>
int32_t guarded(F call) {
    return guarded<int32_t>(PF_REFUSED, PF_NO_MEMORY, call);
}

}  // namespace

int32_t pf_abi() { return PF_ABI; }

const char *pf_error() { return last_error.c_str(); }

const char *pf_instruction_sets() {
    static const std::string names = [] {
        std::string list;
        for (const pf::Kernels *kernels : pf::supported_kernels()) list += (list.empty() ? "" : " ") + std::string(kernels->name);
        return list;
    }();
    return names.c_str();
}

const char *pf_linear_implementation(const char *instruction_set, int32_t format) {
    const pf::Kernels *kernels = pf::find_kernels(instruction_set);
    return kernels && format >= 0 && format < PF_NUM_FORMATS ? kernels->linear_name[pf::packed_kind(format)] : nullptr;
}

PfExecutor *pf_executor_create(const PfModel *model, const char *instruction_set, int32_t threads) {
    return guarded<PfExecutor *>(nullptr, nullptr, [&]() -> PfExecutor * {
        const pf::Kernels *kernels = pf::find_kernels(instruction_set);
        if (!kernels) throw std::invalid_argument(std::string("this processor has no instruction set ") + instruction_set);
        return new PfExecutor{{*model, *kernels, threads}};
    });
}

void pf_executor_destroy(PfExecutor *executor) { delete executor; }

int32_t pf_executor_add_program(PfExecutor *executor, const PfStage *stages, int32_t num_stages, const int32_t *operands,
                              int32_t num_operands) {
    return guarded([&] { return executor->executor.add_program(stages, num_stages, operands, num_operands); });
}

int64_t pf_executor_packed_bytes(const PfExecutor *executor) { return (int64_t)executor->executor.packed_bytes(); }

int32_t pf_executor_allocate(PfExecutor *executor, int32_t num_blocks, int32_t block_size, int32_t rows, int32_t slots,
                            int32_t local_blocks) {
    return guarded([&] {
        executor->executor.allocate(num_blocks, block_size, rows, slots, local_blocks);
        return PF_OK;
    });
}

int32_t pf_executor_set_adapter(PfExecutor *executor, int32_t number, const PfLowRank *parts, int32_t num_parts) {
    return guarded([&] {
        executor->executor.set_adapter(number, parts, num_parts);
        return PF_OK;
    });
}

uint8_t *pf_executor_keys(PfExecutor *executor) { return executor->executor.cache().keys.as<uint8_t>(); }

uint8_t *pf_executor_values(PfExecutor *executor) { return executor->executor.cache().values.as<uint8_t>(); }

int32_t pf_executor_step(PfExecutor *executor, int32_t program, const PfStep *step) {
    return guarded([&] {
        executor->executor.step(program, *step);
        return PF_OK;
    });
}

float *pf_executor_buffer(PfExecutor *executor, int32_t buffer) { return executor->executor.buffer(buffer); }

uint32_t pf_scan(const void *data, int64_t num_bytes, int32_t number_bytes, uint64_t *sums, void *into) {
    return pf::supported_kernels().front()->scan(data, num_bytes, number_bytes, sums, into);
}
