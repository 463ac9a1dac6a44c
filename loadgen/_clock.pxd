"""`loadgen.clock.monotonic` in C."""

from libc.stdint cimport int64_t

cdef extern from "<time.h>" nogil:
    ctypedef int clockid_t
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    clockid_t CLOCK_MONOTONIC
    int clock_gettime(clockid_t clock, timespec* now)

cdef inline int64_t ns_of(timespec moment) noexcept nogil:
    return <int64_t>moment.tv_sec * 1_000_000_000 + moment.tv_nsec

cdef inline int64_t monotonic() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return ns_of(now)
