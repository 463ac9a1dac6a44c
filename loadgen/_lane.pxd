from libc.stdint cimport int64_t

cdef class Log:
    cdef char* _bytes
    cdef size_t _used, _room
    cdef Py_ssize_t _count
    cdef int _reserve(self, size_t more) except -1
    cdef void _foresee(self) noexcept
    cdef void _mark(self, int64_t t, int64_t real, size_t size) noexcept
    cdef list _column(self, int number)

cdef class Lane:
    cdef bytes _begin  # the same object for all of a target's streams, so that it stays in cache; so the next
    cdef bytes _head  # None once it is there
    cdef tuple _hints
    cdef Log _log
    cdef readonly bint took, over
    cdef readonly int64_t headers_at, headers_real
    cdef bint _take(self, int64_t t, const char* data, Py_ssize_t size, int64_t real) except -1
    cdef Py_ssize_t _events(self, const char* data, Py_ssize_t size, char* body) except -2
    cdef bint _hinted(self, const char* data, Py_ssize_t size) except -1
    cdef Py_ssize_t _usual(self, const char* data, Py_ssize_t begin, Py_ssize_t size) noexcept
