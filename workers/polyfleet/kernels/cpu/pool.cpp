#include "pool.h"

#include <chrono>

namespace pf {

namespace {

// A barrier takes about a microsecond, so a waiting thread spins; but when threads share a core, the one waited for
// needs it, hence the yields after some 10 µs. Between steps a thread sleeps only after a time in which a busy engine
// would have begun the next one: waking it takes some 50 µs.
const int SPINS_BEFORE_YIELD = 400;
const auto AWAKE_BETWEEN_STEPS = std::chrono::milliseconds(2);

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

}  // namespace

Pool::Pool(int size) : size_(size) {
    for (int i = 1; i < size; i++) threads_.emplace_back(&Pool::work, this, i);
}

Pool::~Pool() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
        round_++;
    }
    wake_.notify_all();
    for (auto &thread : threads_) thread.join();
}

void Pool::run(const std::function<void(int)> &task) {
    task_ = &task;
    round_.fetch_add(1);  // sequentially consistent with await's parked_: one of the two sees the other
    if (parked_.load() > 0) {
        { std::lock_guard<std::mutex> lock(mutex_); }
        wake_.notify_all();
    }
    task(0);
    barrier();
}

void Pool::barrier() {
    if (size_ == 1) return;
    unsigned phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.store(phase + 1, std::memory_order_release);
        return;
    }
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; spins++)
        if (spins < SPINS_BEFORE_YIELD)
            pause();
        else
            std::this_thread::yield();
}

void Pool::work(int thread) {
    for (unsigned seen = 0;; seen++) {
        if (!await(seen)) return;
        (*task_)(thread);
        barrier();
    }
}

// Returns when round_ has left `seen`; false when the pool ends.
bool Pool::await(unsigned seen) {
    for (int spins = 0; spins < SPINS_BEFORE_YIELD && round_.load() == seen; spins++) pause();
    const auto deadline = std::chrono::steady_clock::now() + AWAKE_BETWEEN_STEPS;
    while (round_.load() == seen && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (round_.load() == seen) {
        std::unique_lock<std::mutex> lock(mutex_);
        parked_++;
        wake_.wait(lock, [&] { return round_.load() != seen; });
        parked_--;
    }
    return !stopping_;
}

}  // namespace pf
