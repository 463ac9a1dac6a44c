"""The disk tier: one file per block in a folder of its own (ENGINE E45).

::

    <folder>/headrace-tier      says what the folder is for, and is locked while it is in use
    <folder>/<digest>.kv        magic, root, digest, length, checksum, K/V

A file that is torn, foreign or gone is a miss, never an error; so is one that cannot be written. Nothing
outlives the process that wrote it: a folder is emptied when it is taken. What the system says of a failure
is logged.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Protocol, runtime_checkable

from engine.messages import DiskFault

log = logging.getLogger(__name__)

_MAGIC = b"hrkv\x00\x00\x00\x01"
_HEADER = Struct("<8s16s16sQ16s")
_OURS = re.compile(r"[0-9a-f]{32}\.kv(\.new)?")
MARKER = "headrace-tier"
LOGS_AGAIN_S = 60.0
"""After a failure was logged no other one is for so long."""


class DiskRefused(ValueError):
    """The folder cannot be used; the message says why and what to do."""


@runtime_checkable
class OverDisk(Protocol):
    """A runner with a disk below it."""

    disk_fault: DiskFault | None


def break_disk(runner: object, fault: DiskFault | None) -> None:
    """Let the disk of a runner fail so from its next move on; None heals it. The fault is in the runner: its
    worker finds out by what does not happen, as it would of a real one."""
    if isinstance(runner, OverDisk):
        runner.disk_fault = fault
    else:
        log.error("there is no disk to break: %s", fault)


class DiskStore:
    """Blocks of one worker by digest. ``identity`` is written into the marker, for people; ``clock`` tells s.
    ``fault`` makes it fail as a disk does.

    Raises DiskRefused if the folder is not marked as ours and holds anything, another process uses it, or it
    cannot be made. In a marked one what somebody else has put there stays, and is in nobody's way.

    A folder that goes away later and comes back is taken by the same rules before anything is written to it.
    It is not made again: what has gone may be the disk that was mounted there.
    """

    def __init__(self, folder: Path, identity: str, clock: Callable[[], float]) -> None:
        self.folder = folder
        self.fault: DiskFault | None = None
        self._identity = identity
        self._clock = clock
        self._logs_from = clock()
        self._opened: int | None = None
        self._open = ExitStack()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._take()
        except OSError as error:
            raise DiskRefused(f"{folder} cannot be used for cached blocks: {error}") from error

    def _take(self) -> None:
        """Mark the folder as ours, lock it, and empty it unless it is the one that we had.

        Raises DiskRefused, OSError.
        """
        with ExitStack() as stack:
            opened = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, opened)
            same = self._opened is not None and os.path.samestat(os.fstat(opened), os.fstat(self._opened))
            if not same:
                self._check(set(os.listdir(opened)))
            lock = os.open(MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, dir_fd=opened)
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                why = "another engine uses it: give the tier another folder"
                raise DiskRefused(f"{self.folder} cannot be used for cached blocks: {why}") from error
            for name in () if same else filter(_OURS.fullmatch, os.listdir(opened)):
                os.unlink(name, dir_fd=opened)
            os.ftruncate(lock, 0)
            os.write(lock, f"{self._identity}\n".encode())
            self._open.close()
            self._open, self._opened, self._lock = stack.pop_all(), opened, lock

    def _ours(self) -> bool:
        """The folder is there, with the marker that we hold the lock of."""
        try:
            return os.path.samestat(os.stat(self.folder / MARKER), os.fstat(self._lock))
        except OSError:
            return False

    def _failed(self, error: Exception) -> None:
        now = self._clock()
        if now >= self._logs_from:
            self._logs_from = now + LOGS_AGAIN_S
            log.warning("%s fails, cached blocks are lost: %s", self.folder, error)

    def _check(self, names: set[str]) -> None:
        """Only a folder that is empty or ours may be emptied."""
        if MARKER in names:
            return
        foreign = sorted(name for name in names if not _OURS.fullmatch(name))
        if foreign:
            raise DiskRefused(
                f"{self.folder} holds {foreign[0]}, which is not ours: give the tier another folder"
            )
        if names:
            raise DiskRefused(f"{self.folder} is not marked as a tier of ours: give the tier another folder")

    def write(self, root: bytes, digest: bytes, data: memoryview) -> bool:
        """Keep a block; False if that fails, and then nothing of it is left."""
        path = self._path(digest)
        new = path.with_suffix(".kv.new")
        checksum = _checksum(root, digest, data)
        try:
            if not self._ours():
                self._take()
                log.warning("%s has come back and is used for cached blocks again", self.folder)
            if self.fault is DiskFault.FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(new))
            with new.open("wb", buffering=0) as file:
                file.write(_HEADER.pack(_MAGIC, root, digest, len(data), checksum))
                if file.write(data) != len(data):
                    raise OSError("short write")
            new.replace(path)
        except (OSError, DiskRefused) as error:
            self._failed(error)
            if self._ours():
                self._unlink(new)
                self._unlink(path)  # an older copy: who asked for a new one believes that it is that
            return False
        return True

    def read(self, root: bytes, digest: bytes, into: memoryview) -> bool:
        """Fill ``into`` with a block; False if it is not there, not this one, or not whole."""
        try:
            with self._path(digest).open("rb", buffering=0) as file:
                header = file.read(_HEADER.size)
                if len(header) != _HEADER.size:
                    return False
                magic, its_root, its_digest, length, checksum = _HEADER.unpack(header)
                if (magic, its_root, its_digest, length) != (_MAGIC, root, digest, len(into)):
                    return False
                if file.readinto(into) != length:
                    return False
                if self.fault is DiskFault.CORRUPT:
                    into[length // 2] ^= 1
        except OSError as error:
            self._failed(error)
            return False
        return bool(_checksum(root, digest, into) == checksum)

    def drop(self, digest: bytes) -> None:
        """Forget a block; nothing if it is not there."""
        if self._ours():
            self._unlink(self._path(digest))

    def close(self) -> None:
        """Let others have the folder, as the end of the process does too; what is in it is of no use."""
        self._open.close()

    def _path(self, digest: bytes) -> Path:
        return self.folder / f"{digest.hex()}.kv"

    @staticmethod
    def _unlink(path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            return  # gone with its folder, or kept by a disk that fails: its checksum will tell


def _checksum(root: bytes, digest: bytes, data: memoryview) -> bytes:
    hashed = blake2b(root + digest, digest_size=16)
    hashed.update(data)
    return hashed.digest()
