# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
r"""`loadgen.harvest` in C, what it does is said there; with `loadgen._lane`, which nobody uses but through this.

```
epoll ──ready──> recvmsg ──> clock ──> lane takes it? ──yes──> appended to the log: no Python object is made
                                              └──no──> news, for Python
```
Optional (`loadgen.native`), for Linux. The GIL is kept: nothing here waits.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_GET_SIZE
from cpython.ref cimport PyObject
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy, memset

from loadgen._clock cimport monotonic, ns_of, timespec
cimport loadgen._lane as lanes

import os

from loadgen._lane import Lane, Log

cdef extern from "Python.h":
    void fetch "__builtin_prefetch"(const void* address) noexcept
    PyObject* item "PyList_GET_ITEM"(list of, Py_ssize_t at) noexcept

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
    MOST_NEWS = 4
    LINE = 64  # bytes of a cache line

INTERFACE = 2  # what `loadgen.native` asks for

cdef char _buffer[READ_BYTES]
cdef char _control[64]


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
        cdef int fd = own.fileno()
        self.use(own, None)
        for k in range(self._next, self._ready):
            if self._events[k].data.fd == fd:
                self._events[k].data.fd = -1

    def use(self, own, lanes.Lane lane):
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
        while (
            self._next < self._ready
            and count < limit
            and PyList_GET_SIZE(news) < MOST_NEWS
            and (count == 0 or self._t < until)
        ):
            event = &self._events[self._next]
            self._next += 1
            count += 1
            self._foresee()
            if event.data.fd >= 0:
                self._one(event.data.fd, event.events, news)
        return count, news

    cdef void _foresee(self) noexcept:
        """Ask for the memory that the next reads will touch: it is cold, and one piece leads to the next, so that
        each is asked for one read after the one that leads to it."""
        cdef PyObject* lane = self._lane(self._next + 1)
        fetch(lane)
        fetch(<char*>lane + LINE)
        lane = self._lane(self._next)
        if lane != NULL:
            fetch(<PyObject*>(<lanes.Lane>lane)._log)
        lane = self._lane(self._next - 1)
        if lane != NULL:
            (<lanes.Lane>lane)._log._foresee()

    cdef PyObject* _lane(self, int at) noexcept:
        """Of the event there, without touching it; NULL if there is none."""
        cdef int fd = self._events[at].data.fd if at < self._ready else -1
        if fd < 0 or fd >= PyList_GET_SIZE(self._lanes):
            return NULL
        cdef PyObject* lane = item(self._lanes, fd)
        return NULL if lane == <PyObject*>None else lane

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
        self._t = monotonic()  # before anything else: this is the time of the read
        cdef lanes.Lane lane = self._lanes[fd]
        if code == EAGAIN:
            return 0
        if size > 0 and (bits != EPOLLIN or size == READ_BYTES):
            self._arm(fd)
        if size <= 0 or lane is None or not lane._take(self._t, _buffer, size, real):
            news.append((fd, _read(self._t, real, size, code)))
        elif lane.over:
            news.append((fd, (self._t, real, None)))
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
    return None if code == EAGAIN else _read(monotonic(), real, size, code)


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
        real[0] = ns_of(stamp)
    return size


def set_timer(int timer, int64_t due):
    cdef itimerspec when
    memset(&when, 0, sizeof(when))
    when.it_value.tv_sec, when.it_value.tv_nsec = due // 1_000_000_000, due % 1_000_000_000
    if timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL) < 0:
        raise OSError(errno, os.strerror(errno))
