// The time of day of one process, set ahead or back as by an administrator or NTP; monotonic time is left alone.
//
//     LD_PRELOAD=clock.so CHAOS_CLOCK=FILE program     # FILE: eight bytes, the seconds to add, read at each call
//
// libfaketime 0.9.10 can't: where monotonic time is real, sleeps until a monotonic time end with EINVAL.

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdint>
#include <cstdlib>

namespace {

const volatile int64_t* opened() {
    const char* path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void* seen = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    return seen == MAP_FAILED ? nullptr : static_cast<const volatile int64_t*>(seen);
}

int64_t shift() {
    static const volatile int64_t* seconds = opened();
    return seconds ? *seconds : 0;
}

template <typename Function>
Function next(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
    static auto real = next<int (*)(clockid_t, timespec*)>("clock_gettime");
    int status = real(clock, now);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return status;
}

extern "C" int gettimeofday(timeval* __restrict now, void* __restrict) noexcept {
    timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    *now = {precise.tv_sec, precise.tv_nsec / 1000};
    return 0;
}

extern "C" time_t time(time_t* seconds) noexcept {
    timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    return seconds ? *seconds = precise.tv_sec : precise.tv_sec;
}

// Whoever waits until a time of day names it to the kernel, whose clock was not set.
extern "C" long syscall(long number, ...) noexcept {
    static auto real = next<long (*)(long, ...)>("syscall");
    va_list given;
    va_start(given, number);
    long of[6];
    for (long& each : of) each = va_arg(given, long);
    va_end(given);
    timespec until;
    if (number == SYS_futex && of[3] && (of[1] & FUTEX_CLOCK_REALTIME)) {
        until = *reinterpret_cast<timespec*>(of[3]);
        until.tv_sec -= shift();
        of[3] = reinterpret_cast<long>(&until);
    }
    return real(number, of[0], of[1], of[2], of[3], of[4], of[5]);
}
