#include "abi.h"

#include <exception>
#include <string>

#include "engine.h"
#include "instruction_sets.h"
#include "pack.h"

struct PfEngine {
    pf::Engine engine;
};

namespace {

thread_local std::string last_error;

template <typename T, typename F>
T guarded(T failure, F call) {
    try {
        return call();
    } catch (const std::bad_alloc &) {
        last_error = "not enough memory";
    } catch (const std::exception &error) {
        last_error = error.what();
    }
    return failure;
}

}  // namespace

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

PfEngine *pf_engine_create(const PfModel *model, const char *instruction_set, int32_t threads) {
    return guarded<PfEngine *>(nullptr, [&]() -> PfEngine * {
        const pf::Kernels *kernels = pf::find_kernels(instruction_set);
        if (!kernels) throw std::invalid_argument(std::string("this processor has no instruction set ") + instruction_set);
        return new PfEngine{{*model, *kernels, threads}};
    });
}

void pf_engine_destroy(PfEngine *engine) { delete engine; }

int32_t pf_engine_add_program(PfEngine *engine, const PfStage *stages, int32_t num_stages, const int32_t *operands,
                              int32_t num_operands) {
    return guarded(-1, [&] { return engine->engine.add_program(stages, num_stages, operands, num_operands); });
}

int32_t pf_engine_step(PfEngine *engine, int32_t program, const PfStep *step) {
    return guarded(-1, [&] {
        engine->engine.step(program, *step);
        return 0;
    });
}

const float *pf_engine_buffer(PfEngine *engine, int32_t buffer) { return engine->engine.buffer(buffer); }
