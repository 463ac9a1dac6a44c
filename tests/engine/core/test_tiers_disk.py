"""The disk tier's files: what is torn, foreign or gone is a miss, and nothing of that is an error (E45)."""

from __future__ import annotations

import errno
import logging
import os
import resource
import shutil

import pytest

from engine.kv.disk import LOGS_AGAIN_S, MARKER, DiskRefused, DiskStore

ROOT, OTHER = b"r" * 16, b"o" * 16
DIGEST = bytes(range(16))
DATA = bytes(range(256)) * 8  # 2048


def opened(folder, identity="a model", clock=lambda: 0.0):
    return DiskStore(folder, identity, clock)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "deep" / "tier"


@pytest.fixture
def store(folder):
    made = opened(folder)
    yield made
    made.close()


def fetched(store, root=ROOT, digest=DIGEST, size=2048):
    """What is there, or None."""
    into = bytearray(size)
    return bytes(into) if store.read(root, digest, memoryview(into)) else None


def kept(store):
    assert store.write(ROOT, DIGEST, memoryview(DATA))
    return store.folder / f"{DIGEST.hex()}.kv"


def test_there_and_back(store):
    """What was written is read, again and again, until it is dropped."""
    kept(store)
    assert fetched(store) == fetched(store) == DATA
    store.drop(DIGEST)
    assert fetched(store) is None
    store.drop(DIGEST)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: data[:40],
        lambda data: b"",
        lambda data: data + b"x",
        lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
        lambda data: data[:70] + b"\0" * (len(data) - 70),
        lambda data: bytes(len(data)),
        lambda data: data[:8] + OTHER + data[24:],
        lambda data: b"hrkv\0\0\0\2" + data[8:],
    ],
    ids=["short", "header only", "empty", "long", "a bit", "half written", "zeros", "other root", "version"],
)
def test_a_bad_file_is_a_miss(store, spoil):
    """Whatever a crash, a disk or somebody else has made of it; what is appended does not matter."""
    path = kept(store)
    data = spoil(path.read_bytes())
    path.write_bytes(data)
    assert fetched(store) == (DATA if data.endswith(b"x") and len(data) > len(DATA) else None)


def test_a_file_of_another_block_is_a_miss(store):
    """Renamed, of another namespace or of another length."""
    path = kept(store)
    other = bytes(16)
    shutil.copy(path, store.folder / f"{other.hex()}.kv")
    assert fetched(store, digest=other) is None
    assert fetched(store, root=OTHER) is None
    assert fetched(store, size=len(DATA) - 1) is None
    assert fetched(store) == DATA


def test_a_full_disk_keeps_what_it_had(store):
    """A write that fails half-way leaves nothing of the new block, and others stay."""
    kept(store)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(DATA), limits[1]))
    try:
        assert not store.write(ROOT, OTHER, memoryview(DATA))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert fetched(store, digest=OTHER) is None
    assert fetched(store) == DATA
    assert sorted(path.name for path in store.folder.iterdir()) == [f"{DIGEST.hex()}.kv", MARKER]


def test_a_failed_rewrite_is_no_older_copy(store):
    """Who wanted to replace a block does not get the old one back."""
    kept(store)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        assert not store.write(ROOT, DIGEST, memoryview(DATA[::-1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert fetched(store) is None


def test_a_vanished_folder(store):
    """Nothing can be read or written any more, and nobody minds."""
    kept(store)
    shutil.rmtree(store.folder)
    assert fetched(store) is None
    assert not store.write(ROOT, DIGEST, memoryview(DATA))
    store.drop(DIGEST)


def test_an_earlier_run_leaves_nothing(folder):
    """A folder of ours is emptied when it is opened, also what was never finished."""
    first = opened(folder, "another model")
    path = kept(first)
    path.with_suffix(".kv.new").write_bytes(b"half")
    first.close()
    second = opened(folder)
    assert fetched(second) is None
    assert [each.name for each in folder.iterdir()] == [MARKER]
    assert (folder / MARKER).read_text() == "a model\n"
    second.close()


def test_what_others_put_into_a_folder_of_ours_stays(folder):
    """A worker that starts again is not kept out by it."""
    first = opened(folder)
    kept(first)
    (folder / "lost+found").mkdir()
    (folder / "notes.txt").write_text("to be kept")
    first.close()
    opened(folder).close()
    assert sorted(each.name for each in folder.iterdir()) == [MARKER, "lost+found", "notes.txt"]


def test_a_folder_of_somebody_else_is_refused(folder):
    """Nothing in it is touched."""
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(DiskRefused, match=r"thesis\.tex, which is not ours"):
        opened(folder)
    assert (folder / "thesis.tex").read_text() == "years of work"


def test_an_unmarked_folder_is_refused(folder):
    """Even with names like ours."""
    folder.mkdir(parents=True)
    (folder / f"{DIGEST.hex()}.kv").write_text("?")
    with pytest.raises(DiskRefused, match="not marked"):
        opened(folder)


def test_one_folder_one_engine(store, folder):
    """A second one is told to take another folder; the first one's blocks are still there."""
    kept(store)
    with pytest.raises(DiskRefused, match="another engine uses it"):
        opened(folder)
    assert fetched(store) == DATA


def test_a_path_that_cannot_be(tmp_path):
    """A file in the way is said."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskRefused, match="cannot be used"):
        opened(tmp_path / "file" / "tier")


class TestTheFolderGoesAway:
    """While the engine serves; what a system, a person or a cleaner does to it."""

    def test_it_is_logged_once_a_minute(self, folder, caplog):
        """With the errno and the path, whether blocks are written or read."""
        now = [0.0]
        store = opened(folder, clock=lambda: now[0])
        kept(store)
        shutil.rmtree(folder)
        for second in range(int(2 * LOGS_AGAIN_S) + 1):
            now[0] = float(second)
            assert not store.write(ROOT, DIGEST, memoryview(DATA))
            assert fetched(store) is None
        assert len(caplog.messages) == 3
        assert all(f"[Errno {errno.ENOENT}]" in said and str(folder) in said for said in caplog.messages)
        assert {record.levelno for record in caplog.records} == {logging.WARNING}
        now[0] += LOGS_AGAIN_S
        assert fetched(store) is None
        assert len(caplog.messages) == 4
        store.close()

    def test_one_that_is_made_again_is_marked_again(self, store, folder):
        """So that the next start is not refused; not before somebody has made it."""
        kept(store)
        shutil.rmtree(folder)
        assert not store.write(ROOT, DIGEST, memoryview(DATA))
        assert not folder.exists()
        folder.mkdir()
        kept(store)
        assert fetched(store) == DATA
        assert (folder / MARKER).read_text() == "a model\n"
        with pytest.raises(DiskRefused, match="another engine uses it"):
            opened(folder)
        store.close()
        opened(folder).close()

    def test_a_file_in_its_place(self, store, folder, caplog):
        """It is left alone; a folder in place of that is taken."""
        shutil.rmtree(folder)
        folder.write_text("mine")
        assert not store.write(ROOT, DIGEST, memoryview(DATA))
        store.drop(DIGEST)
        assert fetched(store) is None
        assert f"[Errno {errno.ENOTDIR}]" in caplog.text
        assert folder.read_text() == "mine"
        folder.unlink()
        folder.mkdir()
        kept(store)
        store.close()
        opened(folder).close()

    def test_the_same_one_comes_back_whole(self, store, folder, tmp_path):
        """A disk that was away for a while: nothing is lost."""
        kept(store)
        folder.rename(tmp_path / "away")
        assert not store.write(ROOT, OTHER, memoryview(DATA))
        (tmp_path / "away").rename(folder)
        assert fetched(store) == DATA
        assert store.write(ROOT, OTHER, memoryview(DATA))
        assert (fetched(store), fetched(store, digest=OTHER)) == (DATA, DATA)

    def test_a_marker_that_was_cleaned_away(self, store, folder):
        """It is written again, and the blocks stay."""
        kept(store)
        (folder / MARKER).unlink()
        assert store.write(ROOT, OTHER, memoryview(DATA))
        assert fetched(store) == DATA
        store.close()
        opened(folder).close()

    def test_a_folder_of_somebody_else_in_its_place(self, store, folder, caplog):
        """Neither marked, nor written to, nor emptied."""
        shutil.rmtree(folder)
        folder.mkdir()
        (folder / "thesis.tex").write_text("years of work")
        (folder / f"{DIGEST.hex()}.kv").write_text("?")
        assert not store.write(ROOT, DIGEST, memoryview(DATA))
        store.drop(DIGEST)
        assert sorted(os.listdir(folder)) == [f"{DIGEST.hex()}.kv", "thesis.tex"]
        assert "thesis.tex, which is not ours" in caplog.text

    def test_a_folder_of_another_engine_in_its_place(self, store, folder, caplog):
        """It has come first: its blocks stay."""
        shutil.rmtree(folder)
        other = opened(folder, "another model")
        kept(other)
        assert not store.write(ROOT, DIGEST, memoryview(DATA))
        store.drop(DIGEST)
        assert fetched(other) == DATA
        assert (folder / MARKER).read_text() == "another model\n"
        assert "another engine uses it" in caplog.text
        other.close()

    def test_files_are_not_left_open(self, store, folder):
        """However often it goes and comes back, and whether it can be taken or not."""
        before = len(os.listdir("/proc/self/fd"))
        for foreign in (False, True) * 3:
            shutil.rmtree(folder)
            folder.mkdir()
            if foreign:
                (folder / "notes.txt").write_text("")
            assert store.write(ROOT, DIGEST, memoryview(DATA)) != foreign
        assert len(os.listdir("/proc/self/fd")) == before
