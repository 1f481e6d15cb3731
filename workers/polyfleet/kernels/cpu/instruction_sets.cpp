#include "instruction_sets.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace pf {

namespace {

#if defined(__x86_64__)

bool bit(unsigned word, int index) { return word >> index & 1; }

// What the operating system saves on a context switch (XCR0): without that, a set must not be used.
unsigned enabled_state() {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

// Whether this process may use AMX's tiles; Linux wants to be asked (arch_prctl, ARCH_REQ_XCOMP_PERM of XTILEDATA).
bool tiles_allowed(unsigned state) {
#if defined(__linux__)
    return (state & 0x60000) == 0x60000 && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
    return false;
#endif
}

void detect(std::vector<const Kernels *> &found) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return;  // OSXSAVE
    const bool fma = bit(c, 12), f16c = bit(c, 29), avx = bit(c, 28);
    const unsigned state = enabled_state();
    if (!avx || !fma || !f16c || (state & 0x6) != 0x6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    const bool avx2 = bit(b, 5), avx512 = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);  // F, DQ, BW, VL
    const bool vnni = bit(c, 11), amx = bit(d, 22) && bit(d, 24) && bit(d, 25);  // bfloat16, tiles, int8
    unsigned a1 = 0, b1, c1, d1;
    const bool bf16 = __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1) && bit(a1, 5);
    if (!avx2) return;
    if (avx512 && vnni && (state & 0xe6) == 0xe6) {
        if (bf16 && amx && tiles_allowed(state)) found.push_back(&amx_kernels);
        if (bf16) found.push_back(&avx512bf16_kernels);
        found.push_back(&avx512_kernels);
    }
    found.push_back(&avx2_kernels);
}

#else

void detect(std::vector<const Kernels *> &) {}

#endif

}  // namespace

const std::vector<const Kernels *> &supported_kernels() {
    static const std::vector<const Kernels *> kernels = [] {
        std::vector<const Kernels *> found;
        detect(found);
        found.push_back(&plain_kernels);
        return found;
    }();
    return kernels;
}

const Kernels *find_kernels(const char *name) {
    for (const Kernels *kernels : supported_kernels())
        if (strcmp(kernels->name, name) == 0) return kernels;
    return nullptr;
}

}  // namespace pf
