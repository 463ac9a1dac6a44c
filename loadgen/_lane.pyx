# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""`loadgen.log.Log` and `loadgen.lane.Lane` in C: what they do is said there. See `loadgen._harvest`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy

cdef extern from "<string.h>" nogil:
    void* memmem(const void* data, size_t size, const void* part, size_t part_size)
    void fetch_to_write "__builtin_prefetch"(const void* address, int write)

cdef enum:
    FIRST_ROOM = 8192
    LINE = 64  # bytes of a cache line
    FORESEEN = 4  # lines: a read of the usual size

cdef packed struct Mark:
    int64_t t
    int64_t real
    uint32_t size


cdef class Log:
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

    cdef void _foresee(self) noexcept:
        """Ask for the memory that the next read will be kept in."""
        cdef int line
        for line in range(FORESEEN):
            fetch_to_write(self._bytes + self._used + line * LINE, 1)

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
    def __cinit__(self, bytes usual not None, tuple hints not None, Log log not None, bytes head not None=b""):
        self._begin, self._hints, self._log, self._head = usual, hints, log, head or None

    def take(self, int64_t t, bytes data not None, int64_t real):
        return self._take(t, PyBytes_AS_STRING(data), len(data), real)

    cdef bint _take(self, int64_t t, const char* data, Py_ssize_t size, int64_t real) except -1:
        """Copies what it keeps to where it belongs; until all is known to fit, the log does not know of it."""
        cdef Log log = self._log
        cdef Py_ssize_t at = 0, kept = 0
        if self._head is not None:
            at = len(self._head)
            if size < at or memcmp(data, PyBytes_AS_STRING(self._head), at) != 0:
                return False
        elif size == 0:
            return False
        if at < size:
            log._reserve(sizeof(Mark) + size)
            kept = self._events(data + at, size - at, log._bytes + log._used + sizeof(Mark))
            if kept < 0:
                kept = _ending(data + at, size - at, log._bytes + log._used + sizeof(Mark))
                if kept < 0:
                    return False
                self.over = True
        if self._head is not None:
            self.headers_at, self.headers_real, self._head = t, real, None
        if kept:
            log._mark(t, real, kept)
            self.took = True
        return True

    cdef Py_ssize_t _events(self, const char* data, Py_ssize_t size, char* body) except -2:
        """Bytes of the events, -1 if not all are usual."""
        cdef Py_ssize_t at = 0, kept = 0, begin, event
        if not self.took and self._hinted(data, size):
            return -1
        while at < size:
            begin = at + (4 if size - at > 2 and data[at + 2] == b"\r" else 5)
            event = self._usual(data + at, begin - at, size - at)
            if event == 0:
                return -1
            memcpy(body + kept, data + begin, event)
            kept += event
            at = begin + event + 2
        return kept

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
        return event if _written(data, begin - 2, event) else 0


cdef Py_ssize_t _ending(const char* data, Py_ssize_t size, char* body) noexcept:
    """Bytes of the body in whole chunks that end it as most streams do; -1 for anything else."""
    cdef Py_ssize_t at = 0, kept = 0, digits, chunk
    while size - at < 5 or memcmp(data + at, b"0\r\n\r\n", 5) != 0:
        digits = 1
        while digits < 4 and at + digits < size and data[at + digits] != b"\r":
            digits += 1
        if digits == 4 or at + digits >= size:
            return -1
        chunk = _number(data + at, digits)
        at += digits + 2
        if chunk <= 0 or at + chunk + 2 > size or data[at - 1] != b"\n":
            return -1
        if data[at + chunk] != b"\r" or data[at + chunk + 1] != b"\n":
            return -1
        memcpy(body + kept, data + at, chunk)
        kept += chunk
        at += chunk + 2
    if at + 5 != size:
        return -1
    if kept >= 16 and memcmp(body + kept - 16, b"\n\ndata: [DONE]\n\n", 16) == 0:
        return kept
    return kept if kept == 14 and memcmp(body, b"data: [DONE]\n\n", 14) == 0 else -1


cdef Py_ssize_t _number(const char* digits, Py_ssize_t count) noexcept:
    """A size of a chunk as servers usually write it, -1 for anything else."""
    cdef Py_ssize_t number = 0, k
    cdef unsigned char digit
    for k in range(count):
        digit = digits[k]
        if c'0' <= digit <= c'9':
            number = number * 16 + digit - c'0'
        elif c'a' <= (digit | 32) <= c'f':
            number = number * 16 + (digit | 32) - c'a' + 10
        else:
            return -1
    return number if _written(digits, count, number) else -1


cdef bint _written(const char* digits, Py_ssize_t count, Py_ssize_t size) noexcept:
    """Whether ``digits`` are ``size``, in small or in large letters, without a nought before it."""
    return _spells(digits, count, size, b"0123456789abcdef") or _spells(digits, count, size, b"0123456789ABCDEF")


cdef bint _spells(const char* digits, Py_ssize_t count, Py_ssize_t size, const char* alphabet) noexcept:
    """Whether ``digits`` are ``size`` in this alphabet, without a nought before it."""
    cdef bint nought = digits[0] == b"0"
    while count:
        count -= 1
        if digits[count] != alphabet[size & 15]:
            return False
        size >>= 4
    return size == 0 and not nought
