# cython: language_level=3, boundscheck=False, wraparound=False
"""`loadgen.reference.streams` in C: what its classes do is said there, and these do the same.

Optional (`loadgen.native`), for Linux. The GIL is kept: nothing here waits.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc

import heapq
import socket

cimport cython

from loadgen._clock cimport monotonic as now

from loadgen.clock import monotonic
from loadgen.reference.answers import End

cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int fd, const void* data, size_t size, int flags)
    int MSG_DONTWAIT, MSG_NOSIGNAL

cdef enum:
    GONE = -1
    FAKE = -2

cdef int64_t MOST_LATE = (<int64_t>1 << 32) - 1
cdef object _HUNG_UP = End.HUNG_UP
cdef object _Socket = socket.socket


@cython.trashcan(True)  # for a long line
cdef class Stream:
    # What each write needs comes first, on as few lines of the cache as that takes.
    cdef int64_t _due
    cdef readonly int64_t base
    cdef readonly tuple pieces, offsets
    cdef public Py_ssize_t index
    cdef readonly Py_ssize_t last
    cdef int64_t* _stamps
    cdef Py_ssize_t _count
    cdef Stream _behind  # it in the line
    cdef int _fd
    cdef public bint blocked
    cdef readonly int64_t number
    cdef readonly object answer, connection
    cdef public bytes rest
    cdef object _send

    def __init__(self, number, base, answer, sock, connection):
        self.number, self.base, self.answer, self.connection = number, base, answer, connection
        self.pieces, self.offsets = answer.pieces, answer.offsets
        self.last, self.index, self.rest, self.blocked = len(self.pieces) - 1, 0, b"", False
        if isinstance(sock, _Socket):
            self._fd = sock.fileno()
        else:
            self._fd, self._send = FAKE, sock.send
        free(self._stamps)
        self._stamps = <int64_t*>malloc(len(self.pieces) * sizeof(int64_t))
        if self._stamps == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._stamps)

    def __lt__(self, Stream other):
        """For the heap: the sooner one, and of two at the same time the one that came first."""
        return self._due < other._due or (self._due == other._due and self.number < other.number)

    @property
    def stamps(self):
        return [self._stamps[k] for k in range(self._count)]

    @property
    def first(self):
        return self._stamps[0] if self._count else -1

    def drop(self):
        self._fd = GONE

    def written(self):
        cdef Py_ssize_t count = self._count - bool(self.rest), events = 0, piece, repeat
        cdef tuple tokens = self.answer.tokens
        for piece in range(count):
            events += <Py_ssize_t>tokens[piece]
        stamps = PyBytes_FromStringAndSize(NULL, events * sizeof(int64_t))
        lates = PyBytes_FromStringAndSize(NULL, events * sizeof(uint32_t))
        cdef int64_t* stamp = <int64_t*>PyBytes_AS_STRING(stamps)
        cdef uint32_t* late = <uint32_t*>PyBytes_AS_STRING(lates)
        cdef int64_t behind
        for piece in range(count):
            behind = min(self._stamps[piece] - <int64_t>self.offsets[piece] - self.base, MOST_LATE)
            for repeat in range(<Py_ssize_t>tokens[piece]):
                stamp[0], late[0] = self._stamps[piece], <uint32_t>behind
                stamp, late = stamp + 1, late + 1
        return stamps, lates

    cdef Py_ssize_t _write(self, bytes data) except -2:
        """Bytes that the kernel has taken, -1 if the client is gone."""
        cdef Py_ssize_t sent
        if self._fd == FAKE:
            return self._pretend(data)
        if self._fd == GONE:
            return -1
        while True:
            sent = send(self._fd, PyBytes_AS_STRING(data), len(data), MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent >= 0:
                return sent
            if errno != EINTR:
                return 0 if errno == EAGAIN else -1

    cdef Py_ssize_t _pretend(self, bytes data) except -2:
        """To what is no socket."""
        try:
            return self._send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return -1


cdef class Timeline:
    cdef readonly int64_t writes
    cdef object _clock, _finished, _blocked
    cdef Stream _first, _last  # of the queue
    cdef Py_ssize_t _queued
    cdef list _heap  # of streams
    cdef int64_t _gap

    def __init__(self, clock, gap, finished, blocked):
        self._clock = None if clock is monotonic else clock
        self._gap, self._finished, self._blocked = gap, finished, blocked
        self._first = self._last = None
        self._heap = []
        self.writes = self._queued = 0

    def __len__(self):
        return self._queued + len(self._heap)

    @property
    def next_due(self):
        cdef Stream stream = self._next()
        return None if stream is None else stream._due

    cdef Stream _next(self):
        """The first one due; of two at the same time, that in the queue."""
        if not self._heap:
            return self._first
        cdef Stream waits = self._heap[0]
        return waits if self._first is None or waits._due < self._first._due else self._first

    def add(self, Stream stream not None):
        stream._due = stream.base + <int64_t>stream.offsets[stream.index]
        heapq.heappush(self._heap, stream)

    def run_due(self, int most):
        cdef Stream stream
        cdef bytes data
        cdef int64_t t, due
        cdef Py_ssize_t sent
        cdef int done = 0
        while done < most:
            stream = self._next()
            if stream is None:
                break
            due, data = stream._due, stream.pieces[stream.index]
            t = self._now()
            if t < due:
                break
            sent = stream._write(data)
            if stream is self._first:
                self._dequeue()
            else:
                heapq.heappop(self._heap)
            if sent == len(data) and stream.index < stream.last:
                stream._stamps[stream._count] = t
                stream._count += 1
                stream.index += 1
                self._follow(stream, due)
            else:
                self._leave(stream, t, data, sent)
            done += 1
        self.writes += done
        return done

    cdef void _dequeue(self) noexcept:
        """The first one."""
        cdef Stream stream = self._first
        self._first, stream._behind = stream._behind, None
        if self._first is None:
            self._last = None
        self._queued -= 1

    cdef int _follow(self, Stream stream, int64_t due) except -1:
        """The next piece of a stream whose last one was due then."""
        cdef int64_t after = stream.base + <int64_t>stream.offsets[stream.index]
        stream._due = after
        if after - due != self._gap or (self._last is not None and after < self._last._due):
            heapq.heappush(self._heap, stream)
            return 0
        if self._last is None:
            self._first = stream
        else:
            self._last._behind = stream
        self._last = stream
        self._queued += 1
        return 0

    cdef int _leave(self, Stream stream, int64_t t, bytes data, Py_ssize_t sent) except -1:
        if sent < 0:
            self._finished(stream, _HUNG_UP)
            return 0
        stream._stamps[stream._count] = t
        stream._count += 1
        if sent == len(data):
            self._finished(stream, stream.answer.end)
        else:
            stream.rest, stream.blocked = data[sent:], True
            self._blocked(stream)
        return 0

    def resume(self, Stream stream not None):
        stream._stamps[stream._count - 1] = self._now()
        cdef Py_ssize_t sent = stream._write(stream.rest)
        if sent < 0:
            self._finished(stream, _HUNG_UP)
            return True
        stream.rest = stream.rest[sent:]
        if stream.rest:
            return False
        if stream.index < stream.last:
            stream.index += 1
            self.add(stream)
        else:
            self._finished(stream, stream.answer.end)
        return True

    cdef int64_t _now(self) except -1:
        return now() if self._clock is None else self._clock()
