// The executor's threads: woken once a step, in step with each other by a spinning barrier.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace pf {

class Pool {
public:
    // The caller of run() is one of the `size` threads.
    explicit Pool(int size);
    ~Pool();
    Pool(const Pool &) = delete;

    int size() const { return size_; }

    // Calls task(thread) on every thread, returns when all have.
    void run(const std::function<void(int)> &task);

    // For tasks: returns when every thread has come here. Writes before it are seen by all behind it.
    void barrier();

private:
    void work(int thread);
    bool await(unsigned seen);

    const int size_;
    const std::function<void(int)> *task_ = nullptr;
    alignas(64) std::atomic<unsigned> round_{0};  // counts run() calls
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<unsigned> phase_{0};  // counts barriers
    std::atomic<bool> stopping_{false};
    std::atomic<int> parked_{0};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<std::thread> threads_;
};

}  // namespace pf
