// Owned memory straight from the system: zeroed, page-aligned, or on huge pages where they are to be had.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <new>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

namespace pf {

const size_t HUGE_PAGE = 2 << 20;  // bytes

class Memory {
public:
    Memory() = default;
    explicit Memory(size_t size) : size_(size ? size : 1), mapped_(size_), base_(map(mapped_)) {}
    Memory(Memory &&other) noexcept { swap(other); }
    Memory &operator=(Memory &&other) noexcept {
        swap(other);
        return *this;
    }
    ~Memory() {
        if (base_) munmap(base_, mapped_);
    }

    // Streaming weights through 4 KiB pages spends more on address translation than on arithmetic. Huge pages start and
    // end at multiples of their size, so what is as large as one does too.
    static Memory on_huge_pages(size_t size) {
#if defined(MADV_HUGEPAGE)
        if (size < HUGE_PAGE) return Memory(size);
        Memory out;
        out.size_ = size;
        out.mapped_ = (size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        char *first = static_cast<char *>(map(out.mapped_ + HUGE_PAGE));
        const size_t before = (HUGE_PAGE - (uintptr_t)first % HUGE_PAGE) % HUGE_PAGE;
        out.base_ = first + before;
        if (before) munmap(first, before);
        munmap(first + before + out.mapped_, HUGE_PAGE - before);
        madvise(out.base_, out.mapped_, MADV_HUGEPAGE);
        return out;
#else
        return Memory(size);
#endif
    }

    template <typename T>
    T *as(size_t offset = 0) const {
        return reinterpret_cast<T *>(static_cast<char *>(base_) + offset);
    }
    size_t size() const { return size_; }

private:
    static void *map(size_t size) {
        void *base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED) throw std::bad_alloc();
        return base;
    }
    void swap(Memory &other) {
        std::swap(base_, other.base_);
        std::swap(size_, other.size_);
        std::swap(mapped_, other.mapped_);
    }
    size_t size_ = 0, mapped_ = 0;  // bytes asked for, and those of all its pages
    void *base_ = nullptr;
};

// Lets the system take the pages that lie wholly in [data, data + size) out of memory, as it does when memory is short:
// nothing is lost, a mapped file is read again when needed. For weights that have been packed.
inline void page_out(const void *data, size_t size) {
#if defined(MADV_PAGEOUT)
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)data;
    const uintptr_t first = (at + page - 1) / page * page, last = (at + size) / page * page;
    if (first < last) madvise(reinterpret_cast<void *>(first), last - first, MADV_PAGEOUT);
#else
    (void)data, (void)size;
#endif
}

}  // namespace pf
