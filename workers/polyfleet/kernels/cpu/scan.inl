// A look at numbers wherever they lie, which bring no alignment of their own.
#include "kernels.h"

#include <string.h>

namespace {

typedef uint64_t __attribute__((aligned(1), may_alias)) Loose64;
typedef int32_t __attribute__((aligned(1), may_alias)) Loose32;
typedef int16_t __attribute__((aligned(1), may_alias)) Loose16;

// The largest of `most` and the magnitudes of count numbers, as bits: signed, since no sign is left.
template <typename Loose, typename Bits>
Bits larger(const uint8_t *data, int64_t count, Bits most) {
    const Bits magnitude = (Bits)~((Bits)1 << (8 * sizeof(Bits) - 1));
    const Loose *numbers = reinterpret_cast<const Loose *>(data);
    for (int64_t i = 0; i < count; i++) {
        const Bits bits = (Bits)(numbers[i] & magnitude);
        most = bits > most ? bits : most;
    }
    return most;
}

template <typename Loose, typename Bits>
uint32_t scan_numbers(const uint8_t *data, int64_t num_bytes, uint64_t *sums, uint8_t *into) {
    constexpr int AHEAD = 2 * pf::SCAN_ROW;  // a processor's own prefetching stops at pages
    Bits most = 0;
    for (int64_t at = 0; at < num_bytes; at += pf::SCAN_ROW) {
        for (int i = 0; i < pf::SCAN_ROW; i += 64) __builtin_prefetch(data + at + AHEAD + i);
        const int64_t row = num_bytes - at < pf::SCAN_ROW ? num_bytes - at : pf::SCAN_ROW;
        const uint8_t *seen = data + at;
        if (into) seen = static_cast<uint8_t *>(memcpy(into + at, seen, row));
        if (sums && row == pf::SCAN_ROW) {
            const Loose64 *words = reinterpret_cast<const Loose64 *>(seen);
            uint64_t sum = 0;
            for (int i = 0; i < pf::SCAN_ROW / 8; i++) sum += words[i];
            sums[at / pf::SCAN_ROW] = sum;
        }
        most = larger<Loose>(seen, row / (int64_t)sizeof(Bits), most);  // while the row is in the nearest cache
    }
    return (uint32_t)most;
}

uint32_t scan(const void *data, int64_t num_bytes, int number_bytes, uint64_t *sums, void *into) {
    const uint8_t *bytes = static_cast<const uint8_t *>(data);
    uint8_t *copy = static_cast<uint8_t *>(into);
    return number_bytes == 2 ? scan_numbers<Loose16, int16_t>(bytes, num_bytes, sums, copy)
                             : scan_numbers<Loose32, int32_t>(bytes, num_bytes, sums, copy);
}

}  // namespace
