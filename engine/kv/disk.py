"""The disk tier: one file per block in a folder of its own (ENGINE E45).

::

    <folder>/headrace-tier      says what the folder is for, and is locked while it is in use
    <folder>/<digest>.kv        magic, root, digest, length, checksum, K/V

A file that is torn, foreign or gone is a miss, never an error; so is one that cannot be written. Nothing
outlives the process that wrote it: a folder is emptied when it is opened.
"""

from __future__ import annotations

import fcntl
import os
import re
from hashlib import blake2b
from pathlib import Path
from struct import Struct

_MAGIC = b"hrkv\x00\x00\x00\x01"
_HEADER = Struct("<8s16s16sQ16s")
_OURS = re.compile(r"[0-9a-f]{32}\.kv(\.new)?")
MARKER = "headrace-tier"


class DiskRefused(ValueError):
    """The folder cannot be used; the message says why and what to do."""


class DiskStore:
    """Blocks of one worker by digest. ``identity`` is written into the marker, for people.

    Raises DiskRefused if the folder is not marked as ours and holds anything, another process uses it, or it
    cannot be made. In a marked one what somebody else has put there stays, and is in nobody's way.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._check(set(os.listdir(folder)))
            self._lock = os.open(folder / MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except OSError as error:
            raise DiskRefused(f"{folder} cannot be used for cached blocks: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in filter(_OURS.fullmatch, os.listdir(folder)):
                (folder / name).unlink()
            os.ftruncate(self._lock, 0)
            os.write(self._lock, f"{identity}\n".encode())
        except OSError as error:
            os.close(self._lock)
            used = isinstance(error, BlockingIOError)
            why = "another engine uses it: give the tier another folder" if used else str(error)
            raise DiskRefused(f"{folder} cannot be used for cached blocks: {why}") from error

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
            with new.open("wb", buffering=0) as file:
                file.write(_HEADER.pack(_MAGIC, root, digest, len(data), checksum))
                if file.write(data) != len(data):
                    raise OSError("short write")
            new.replace(path)
        except OSError:
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
        except OSError:
            return False
        return bool(_checksum(root, digest, into) == checksum)

    def drop(self, digest: bytes) -> None:
        """Forget a block; nothing if it is not there."""
        self._unlink(self._path(digest))

    def close(self) -> None:
        """Let others have the folder, as the end of the process does too; what is in it is of no use."""
        os.close(self._lock)

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
