// Owned memory straight from the system: zeroed, page-aligned, on huge pages where they are to be had.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <new>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

namespace pf {

class Memory {
public:
    Memory() = default;
    explicit Memory(size_t size) : size_(size ? size : 1) {
        base_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base_ == MAP_FAILED) throw std::bad_alloc();
    }
    Memory(Memory &&other) noexcept { swap(other); }
    Memory &operator=(Memory &&other) noexcept {
        swap(other);
        return *this;
    }
    ~Memory() {
        if (base_) munmap(base_, size_);
    }

    // Streaming weights through 4 KiB pages spends more on address translation than on arithmetic.
    Memory &&on_huge_pages() && {
#if defined(MADV_HUGEPAGE)
        madvise(base_, size_, MADV_HUGEPAGE);
#endif
        return std::move(*this);
    }

    template <typename T>
    T *as(size_t offset = 0) const {
        return reinterpret_cast<T *>(static_cast<char *>(base_) + offset);
    }
    size_t size() const { return size_; }

private:
    void swap(Memory &other) {
        std::swap(base_, other.base_);
        std::swap(size_, other.size_);
    }
    void *base_ = nullptr;
    size_t size_ = 0;
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
