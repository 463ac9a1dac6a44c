# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
r"""`loadgen.log.Log`, `loadgen.lane.Lane` and `loadgen.harvest` in C: what they do is said there.

```
epoll ──ready──> recvmsg ──> clock ──> lane takes it? ──yes──> appended to the log: no Python object is made
                                              └──no──> news, for Python
```
Optional (`loadgen.native`), for Linux. The GIL is kept: nothing here waits.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

import os

cdef extern from "<string.h>" nogil:
    void* memmem(const void* data, size_t size, const void* part, size_t part_size)

cdef extern from "<time.h>" nogil:
    ctypedef int clockid_t
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    clockid_t CLOCK_MONOTONIC
    int clock_gettime(clockid_t clock, timespec* now)

cdef extern from "<sys/timerfd.h>" nogil:
    cdef struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_settime(int timer, int flags, itimerspec* when, itimerspec* before)
    int TFD_TIMER_ABSTIME

cdef extern from "<sys/socket.h>" nogil:
    ctypedef unsigned int socklen_t
    cdef struct iovec:
        void* iov_base
        size_t iov_len
    cdef struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
        void* msg_control
        size_t msg_controllen
    cdef struct cmsghdr:
        pass
    ssize_t recvmsg(int fd, msghdr* message, int flags)
    cmsghdr* CMSG_FIRSTHDR(msghdr* message)
    unsigned char* CMSG_DATA(cmsghdr* control)
    int MSG_DONTWAIT

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_wait(int epoll, epoll_event* events, int limit, int timeout)
    int epoll_ctl(int epoll, int operation, int fd, epoll_event* event)
    int EPOLL_CTL_MOD
    uint32_t EPOLLIN, EPOLLRDHUP, EPOLLET

cdef enum:
    READ_BYTES = 16384
    MOST_READY = 256
    FIRST_ROOM = 8192

cdef char _buffer[READ_BYTES]
cdef char _control[64]

cdef packed struct Mark:
    int64_t t
    int64_t real
    uint32_t size


cdef class Log:
    cdef char* _bytes
    cdef size_t _used, _room
    cdef Py_ssize_t _count

    def __dealloc__(self):
        free(self._bytes)

    cdef int _reserve(self, size_t more) except -1:
        cdef size_t room = self._room or FIRST_ROOM
        while room < self._used + more:
            room *= 2
        if room > self._room:
            grown = <char*>realloc(self._bytes, room)
            if grown == NULL:
                raise MemoryError
            self._bytes, self._room = grown, room
        return 0

    cdef void _mark(self, int64_t t, int64_t real, size_t size) noexcept:
        """A read whose bytes lie behind its place already."""
        cdef Mark mark
        mark.t, mark.real, mark.size = t, real, <uint32_t>size
        memcpy(self._bytes + self._used, &mark, sizeof(Mark))
        self._used += sizeof(Mark) + size
        self._count += 1

    def add(self, int64_t t, int64_t real, bytes data not None):
        self._reserve(sizeof(Mark) + len(data))
        memcpy(self._bytes + self._used + sizeof(Mark), PyBytes_AS_STRING(data), len(data))
        self._mark(t, real, len(data))

    def packed(self):
        return PyBytes_FromStringAndSize(self._bytes, self._used)

    def unpack(self, bytes packed not None):
        cdef size_t at = 0, end = len(packed)
        cdef Py_ssize_t count = 0
        cdef Mark mark
        while at < end:
            if end - at < sizeof(Mark):
                raise ValueError("the log of an answer ends within a stamp")
            memcpy(&mark, PyBytes_AS_STRING(packed) + at, sizeof(Mark))
            at += sizeof(Mark) + mark.size
            count += 1
        if at != end:
            raise ValueError("the log of an answer ends within a read")
        self._reserve(end)
        memcpy(self._bytes + self._used, PyBytes_AS_STRING(packed), end)
        self._used += end
        self._count += count

    def __len__(self):
        return self._count

    def __eq__(self, other):
        return isinstance(other, Log) and self.packed() == other.packed()

    __hash__ = None

    @property
    def users(self):
        return self._column(0)

    @property
    def reals(self):
        return self._column(1)

    @property
    def chunks(self):
        return self._column(2)

    cdef list _column(self, int number):
        cdef size_t at = 0
        cdef Mark mark
        cdef list values = []
        while at < self._used:
            memcpy(&mark, self._bytes + at, sizeof(Mark))
            at += sizeof(Mark)
            if number == 2:
                values.append(PyBytes_FromStringAndSize(self._bytes + at, mark.size))
            else:
                values.append(mark.real if number else mark.t)
            at += mark.size
        return values


cdef class Lane:
    cdef bytes _begin  # the same object for all of a target's streams, so that it stays in cache
    cdef tuple _hints
    cdef Log _log
    cdef readonly bint took

    def __cinit__(self, bytes usual not None, tuple hints not None, Log log not None):
        self._begin, self._hints, self._log = usual, hints, log

    def take(self, int64_t t, bytes data not None, int64_t real):
        return self._take(t, PyBytes_AS_STRING(data), len(data), real)

    cdef bint _take(self, int64_t t, const char* data, Py_ssize_t size, int64_t real) except -1:
        """Copies each event to where it belongs if all are usual; until then the log does not know of them."""
        cdef Log log = self._log
        cdef Py_ssize_t at = 0, kept = 0, begin, event
        if not self.took and self._hinted(data, size):
            return False
        log._reserve(sizeof(Mark) + size)
        cdef char* body = log._bytes + log._used + sizeof(Mark)
        while at < size:
            begin = at + (4 if size - at > 2 and data[at + 2] == b"\r" else 5)
            event = self._usual(data + at, begin - at, size - at)
            if event == 0:
                return False
            memcpy(body + kept, data + begin, event)
            kept += event
            at = begin + event + 2
        if kept:
            log._mark(t, real, kept)
            self.took = True
        return kept > 0

    cdef bint _hinted(self, const char* data, Py_ssize_t size) except -1:
        cdef bytes hint
        for hint in self._hints:
            if memmem(data, size, PyBytes_AS_STRING(hint), len(hint)) != NULL:
                return True
        return False

    cdef Py_ssize_t _usual(self, const char* data, Py_ssize_t begin, Py_ssize_t size) noexcept:
        """Bytes of the event that begins there, 0 if what the chunk holds is not a usual one."""
        cdef Py_ssize_t prefix = len(self._begin)
        if size < begin + prefix or data[begin - 2] != b"\r" or data[begin - 1] != b"\n":
            return 0
        if memcmp(data + begin, PyBytes_AS_STRING(self._begin), prefix) != 0:
            return 0
        cdef const char* line = <const char*>memchr(data + begin, b"\n", size - begin)
        if line == NULL or data + size - line < 4 or memcmp(line, b"\n\n\r\n", 4) != 0:
            return 0
        cdef Py_ssize_t event = line + 2 - (data + begin)
        if _spells(data, begin - 2, event, b"0123456789abcdef"):
            return event
        return event if _spells(data, begin - 2, event, b"0123456789ABCDEF") else 0


cdef bint _spells(const char* digits, Py_ssize_t count, Py_ssize_t size, const char* alphabet) noexcept:
    """Whether ``digits`` are ``size`` in this alphabet, without a nought before it."""
    cdef bint nought = digits[0] == b"0"
    while count:
        count -= 1
        if digits[count] != alphabet[size & 15]:
            return False
        size >>= 4
    return size == 0 and not nought


cdef class Harvest:
    cdef object _owned
    cdef int _epoll
    cdef list _lanes
    cdef epoll_event _events[MOST_READY]
    cdef int _next, _ready  # of the events
    cdef int64_t _t  # of the last read

    def __cinit__(self, epoll, clock):
        self._owned, self._epoll, self._lanes = epoll, epoll.fileno(), []

    def know(self, own):
        self._lanes += [None] * (own.fileno() + 1 - len(self._lanes))

    def forget(self, own):
        self.use(own, None)
        for k in range(self._next, self._ready):
            if self._events[k].data.fd == own.fileno():
                self._events[k].data.fd = -1

    def use(self, own, Lane lane):
        cdef int fd = own.fileno()
        if 0 <= fd < len(self._lanes):
            self._lanes[fd] = lane

    @property
    def left(self):
        return self._next < self._ready

    def read(self, int limit, int64_t until):
        cdef list news = []
        cdef int count = 0
        cdef epoll_event* event
        if self._next == self._ready:
            self._wait(limit)
        while self._next < self._ready and count < limit and (count == 0 or self._t < until):
            event = &self._events[self._next]
            self._next += 1
            count += 1
            if event.data.fd >= 0:
                self._one(event.data.fd, event.events, news)
        return count, news

    cdef int _wait(self, int limit) except -1:
        self._next, self._ready = 0, epoll_wait(self._epoll, self._events, min(limit, MOST_READY), 0)
        if self._ready < 0:
            self._ready = 0
            if errno != EINTR:
                raise OSError(errno, os.strerror(errno))
        return 0

    cdef int _one(self, int fd, uint32_t bits, list news) except -1:
        if fd >= len(self._lanes):
            return 0
        cdef int64_t real
        cdef ssize_t size = _receive(fd, &real)
        cdef int code = errno if size < 0 else 0
        self._t = _now()  # before anything else: this is the time of the read
        cdef Lane lane = self._lanes[fd]
        if code == EAGAIN:
            return 0
        if size > 0 and (bits != EPOLLIN or size == READ_BYTES):
            self._arm(fd)
        if size <= 0 or lane is None or not lane._take(self._t, _buffer, size, real):
            news.append((fd, _read(self._t, real, size, code)))
        return 0

    cdef int _arm(self, int fd) except -1:
        cdef epoll_event event
        event.events, event.data.fd = EPOLLIN | EPOLLRDHUP | EPOLLET, fd
        if epoll_ctl(self._epoll, EPOLL_CTL_MOD, fd, &event) < 0:
            raise OSError(errno, os.strerror(errno))
        return 0


def receive(own):
    cdef int64_t real
    cdef ssize_t size = _receive(own.fileno(), &real)
    cdef int code = errno if size < 0 else 0
    return None if code == EAGAIN else _read(_now(), real, size, code)


cdef tuple _read(int64_t t, int64_t real, ssize_t size, int code):
    """`loadgen.harvest.Read`"""
    given = OSError(code, os.strerror(code)) if code else PyBytes_FromStringAndSize(_buffer, size)
    return t, real, given


cdef ssize_t _receive(int fd, int64_t* real) noexcept:
    """As `recvmsg`, into the buffer; with the kernel's stamp."""
    cdef iovec part
    cdef msghdr message
    cdef ssize_t size = -1
    cdef timespec stamp
    part.iov_base, part.iov_len = _buffer, READ_BYTES
    memset(&message, 0, sizeof(message))
    message.msg_iov, message.msg_iovlen = &part, 1
    while size < 0:
        message.msg_control, message.msg_controllen = _control, sizeof(_control)
        size = recvmsg(fd, &message, MSG_DONTWAIT)
        if size < 0 and errno != EINTR:
            break
    real[0] = 0
    if size > 0 and CMSG_FIRSTHDR(&message) != NULL:  # nothing else was asked for
        memcpy(&stamp, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(timespec))
        real[0] = _ns(stamp)
    return size


def set_timer(int timer, int64_t due):
    cdef itimerspec when
    memset(&when, 0, sizeof(when))
    when.it_value.tv_sec, when.it_value.tv_nsec = due // 1_000_000_000, due % 1_000_000_000
    if timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL) < 0:
        raise OSError(errno, os.strerror(errno))


cdef int64_t _now() noexcept:
    """`loadgen.clock.monotonic`."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return _ns(now)


cdef int64_t _ns(timespec moment) noexcept:
    return <int64_t>moment.tv_sec * 1_000_000_000 + moment.tv_nsec
