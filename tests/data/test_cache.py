"""Stored features: computed once per content, resumed after a kill, shared by processes, and never trusted blindly."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from selftrain.data.blocks import append_block, read_blocks
from selftrain.data.cache_folder import cache_root
from selftrain.data.features import collection as collection_module
from selftrain.data.features import verified
from selftrain.data.features.collection import ABOUT, Collection
from selftrain.data.features.housekeeping import clear_caches, list_caches, shrink_cache, verify_cache
from selftrain.data.features.store import stored_vectors
from selftrain.data.features.stored import StoredFeatures
from selftrain.data.images import ArrayImages, FileImages, JoinedImages, fingerprint
from selftrain.data.images.content import Lookup
from selftrain.data.images.memory import Memory
from selftrain.errors import UserError
from tests.folders import layout_2
from tests.processes import DEADLINE, started, wait_for

N, WIDTH = 50, 4
VIEWS = ("clean", "weak_1", "strong_1")


def contents(*numbers: int) -> Any:
    return np.array([(number + 1, 7 * number) for number in numbers], np.uint64)


def value(rows: Any, some: Sequence[int], numbers: Sequence[int] | None = None) -> np.ndarray:
    own = np.asarray(rows if numbers is None else np.asarray(numbers)[rows])
    vectors = own[:, None, None] * 10 + np.asarray(some)[:, None] + np.arange(WIDTH) / 8
    return np.asarray(vectors, np.float32)


class Counter:
    def __init__(self, numbers: Sequence[int] | None = None) -> None:
        self.rows: list[int] = []
        self.views: set[int] = set()
        self.numbers = numbers

    def __call__(self, rows: Any, some: Sequence[int]) -> np.ndarray:
        self.rows += rows.tolist()
        self.views |= set(some)
        return value(rows, some, self.numbers)


def collection(root: Path, **about: Any) -> Collection:
    return Collection(root / "features", {"backbone": "test", **about}, WIDTH, np.dtype("float32"))


def stored(root: Path, compute: Any, numbers: Sequence[int] = range(N), **options: Any) -> StoredFeatures:
    where = collection(root, **options.pop("about", {}))
    specs = [{"view": view} for view in options.pop("views", VIEWS)]
    return stored_vectors(where, contents(*numbers), specs, compute, piece=8, **{"threads": 2, **options})


def only(root: Path, suffix: str) -> Path:
    (found,) = (root / "features").glob(f"*/*{suffix}")
    return found


# --- blocks ---------------------------------------------------------------------------------------------------------


def test_damaged_blocks_are_skipped_and_later_ones_found(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert list(read_blocks(path)) == []
    for content in (b"one", b"", b"three"):
        append_block(path, content)
    assert list(read_blocks(path)) == [b"one", b"", b"three"]
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])  # killed while writing
        append_block(path, b"later")
        found = list(read_blocks(path))
        assert found[-1] == b"later"
        assert found[:-1] == [b"one", b"", b"three"][: len(found) - 1]
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        assert len(list(read_blocks(path))) == 2


def test_rows_that_share_a_number_are_told_apart() -> None:
    table = np.array([(5, 1), (5, 2), (3, 1), (5, 2)], np.uint64)
    wanted = np.array([(5, 2), (5, 1), (5, 3), (3, 1), (9, 9), (0, 0)], np.uint64)
    assert Lookup(table).find(wanted).tolist() == [3, 0, -1, 2, -1, -1]


# --- contents of images ---------------------------------------------------------------------------------------------


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust the times of files that were just written."""
    monkeypatch.setattr("selftrain.data.images.content.SETTLED", -1e9)


def files(folder: Path) -> FileImages:
    return FileImages(folder, sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png")))


@pytest.mark.usefixtures("settled")
def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, memory = layout_2(tmp_path / "data", per_class=2), Memory(tmp_path / "cache")
    images = files(data)
    first = memory.contents(images)
    assert len(np.unique(first, axis=0)) == len(images)
    reads: list[int] = []
    content = FileImages.content

    def counted(self: FileImages, i: int) -> bytes:
        reads.append(i)
        return content(self, i)

    monkeypatch.setattr(FileImages, "content", counted)
    assert np.array_equal(memory.contents(images), first)
    assert np.array_equal(memory.contents(images, read=False), first)
    assert reads == []
    os.utime(images.path(1), ns=(1, 1))  # touched
    assert np.array_equal(memory.contents(images), first)
    assert reads == [1]
    Path(images.path(2)).write_bytes(b"other")
    changed = memory.contents(images)
    assert np.flatnonzero((changed != first).any(axis=1)).tolist() == [2]
    shutil.copytree(data, tmp_path / "copy")
    assert np.array_equal(memory.contents(files(tmp_path / "copy")), changed)
    assert not Memory(tmp_path / "cache").contents(FileImages(data, ["gone.png"])).any()


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path) -> None:
    data, memory = layout_2(tmp_path / "data", per_class=1), Memory(tmp_path / "cache")
    memory.contents(files(data))
    assert not memory.contents(files(data), read=False).any()


def test_contents_of_arrays_and_joined_images(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    images, memory = ArrayImages(pixels), Memory(None)
    own = memory.contents(images)
    assert len(np.unique(own, axis=0)) == 3
    assert np.array_equal(memory.contents(images.subset([2, 0])), own[[2, 0]])
    assert np.array_equal(memory.contents(JoinedImages([images, images.subset([1])])), own[[0, 1, 2, 1]])
    assert not np.array_equal(memory.contents(ArrayImages(pixels.reshape(3, 4, 16, 3))), own)


@pytest.mark.usefixtures("settled")
def test_damage_of_what_is_remembered_costs_a_reading(tmp_path: Path) -> None:
    data, memory = layout_2(tmp_path / "data", per_class=2), Memory(tmp_path / "cache")
    first = memory.contents(files(data))
    (log,) = (tmp_path / "cache" / "known").glob("*.log")
    whole = log.read_bytes()
    for harmed in (whole[:-1], whole[:20] + b"x" + whole[21:], b"", whole + os.urandom(50)):
        log.write_bytes(harmed)
        assert np.array_equal(memory.contents(files(data)), first)


# --- the store ------------------------------------------------------------------------------------------------------


def test_it_is_computed_once(tmp_path: Path) -> None:
    first, second = Counter(), Counter()
    assert np.array_equal(np.asarray(stored(tmp_path, first)), value(range(N), range(3)))
    assert sorted(first.rows) == list(range(N))
    assert np.array_equal(np.asarray(stored(tmp_path, second)), value(range(N), range(3)))
    assert second.rows == []


def test_one_more_image_costs_one(tmp_path: Path) -> None:
    stored(tmp_path, Counter())
    numbers = [*range(N - 1, -1, -1), 70, *range(3)]  # in another order, one new, three copies
    more = Counter(numbers)
    found = stored(tmp_path, more, numbers)
    assert more.rows == [N]
    assert np.array_equal(np.asarray(found), value(range(len(numbers)), range(3), numbers))


def test_copies_are_computed_once(tmp_path: Path) -> None:
    counter = Counter([4, 4, 5, 4])
    found = stored(tmp_path, counter, [4, 4, 5, 4])
    assert sorted(counter.rows) == [0, 2]
    assert np.array_equal(np.asarray(found), value(range(4), range(3), [4, 4, 5, 4]))


def test_views_are_shared(tmp_path: Path) -> None:
    stored(tmp_path, Counter(), range(20), views=("clean", "weak_1"))
    more = Counter()
    found = stored(tmp_path, more, range(30))
    assert sorted(more.rows) == list(range(30))
    assert more.views == {0, 1, 2}
    assert np.array_equal(np.asarray(found), value(range(30), range(3)))
    fewer = Counter()
    assert np.array_equal(np.asarray(stored(tmp_path, fewer, views=VIEWS[:1]))[:30], value(range(30), [0]))
    assert sorted(fewer.rows) == list(range(30, N))


def test_it_is_indexed_like_an_array(tmp_path: Path) -> None:
    even = range(0, N, 2)
    stored(tmp_path, lambda rows, _: value(rows, [1], even), even, views=("weak_1",))  # views of an image lie apart
    found, whole = stored(tmp_path, Counter()), value(range(N), range(3))
    rows, views = np.array([4, 1, 1, 49]), np.array([0, 2, 1, 1])
    for features in (found, stored(tmp_path, Counter(), about={"x": 1})):
        assert (features.shape, features.dtype, len(features)) == (whole.shape, np.float32, N)
        assert np.array_equal(features[rows], whole[rows])
        assert np.array_equal(features[10:13], whole[10:13])
        assert np.array_equal(features[rows, views], whole[rows, views])


def test_what_it_depends_on_names_it(tmp_path: Path) -> None:
    stored(tmp_path, Counter())
    other = Counter()
    stored(tmp_path, other, about={"weights": "others"})
    assert len(other.rows) == N
    assert len(list_caches(tmp_path)) == 2


def test_an_error_keeps_what_was_finished(tmp_path: Path) -> None:
    def fails(rows: Any, some: Sequence[int]) -> np.ndarray:
        if rows[0] >= 32:
            raise RuntimeError("no more")
        return value(rows, some)

    with pytest.raises(RuntimeError, match="no more"):
        stored(tmp_path, fails, threads=1)
    again = Counter()
    assert np.array_equal(np.asarray(stored(tmp_path, again)), value(range(N), range(3)))
    assert sorted(again.rows) == list(range(32, N))


def cut_rows(root: Path) -> None:
    os.truncate(only(root, ".rows"), 1000)


def cut_index(root: Path) -> None:
    os.truncate(only(root, ".index"), only(root, ".index").stat().st_size - 5)


def flip_a_bit(root: Path) -> None:
    data = bytearray(only(root, ".rows").read_bytes())
    data[50] ^= 1
    only(root, ".rows").write_bytes(data)


def replace_rows(root: Path) -> None:
    only(root, ".rows").write_bytes(os.urandom(N * 3 * WIDTH * 4))


def foreign_index(root: Path) -> None:
    only(root, ".index").write_bytes(os.urandom(300))


HARM = {cut_rows: 34, cut_index: 2, flip_a_bit: 8, replace_rows: N, foreign_index: N}


@pytest.mark.parametrize("harm", HARM)
def test_harm_is_noticed_and_mended(tmp_path: Path, harm: Any) -> None:
    stored(tmp_path, Counter())
    harm(tmp_path)
    again = Counter()
    assert np.array_equal(np.asarray(stored(tmp_path, again)), value(range(N), range(3)))
    assert len(again.rows) == HARM[harm]
    last = Counter()
    assert np.array_equal(np.asarray(stored(tmp_path, last)), value(range(N), range(3)))
    assert last.rows == []


def test_a_full_disk_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path, Counter())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
    never = Counter()
    with pytest.raises(UserError, match=r"needs .* GB, but only .* GB are free.*SELFTRAIN_CACHE"):
        stored(tmp_path, never, about={"x": 2})
    assert never.rows == []
    stored(tmp_path, never)
    assert never.rows == []


def test_names_of_collections_never_change(tmp_path: Path) -> None:
    """Another name would recompute the features of every user."""
    assert collection(tmp_path, x=1).folder.name == "aacd017496eadd3d63cbe82a"
    images = ArrayImages(np.arange(32, dtype=np.uint8).reshape(2, 4, 4))
    assert images.content(0).hex() == "9d8aeb9bedd5aa9099e012ddcaa927cf"
    assert fingerprint(images) == "fe10b18adb417da5838f5c0aab157c89e31cdb3d5c712ae97897ffabdafd2247"
    (tmp_path / "a.png").write_bytes(b"content")
    os.utime(tmp_path / "a.png", ns=(10**18, 10**18))
    image = FileImages(tmp_path, ["a.png"])
    assert image.content(0).hex() == "ed7002b439e9ac845f22357d822bac14"
    assert fingerprint(image) == "5af7ffd8a0d4851268495252806b79106d3ec5dd0654cc7c469a7da747016f8d"
    assert fingerprint(image, times=False) == "3327db7e575898e739abc622038bc97dcdfa2c77efe4faea7cadcbea315f8705"


SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
from selftrain.data.features.collection import Collection
from selftrain.data.features.store import stored_vectors
def compute(rows, some):
    time.sleep(0.05)
    with open(sys.argv[2], "a") as log:
        log.write("".join(f"{row}\\n" for row in rows))
    return rows[:, None, None] * 10 + np.asarray(some)[:, None] + np.arange(4) / 8
contents = np.array([(number + 1, 7 * number) for number in range(50)], np.uint64)
where = Collection(Path(sys.argv[1]) / "features", {"backbone": "test"}, 4, np.dtype("float32"))
specs = [{"view": view} for view in ("clean", "weak_1", "strong_1")]
stored_vectors(where, contents, specs, compute, piece=2, threads=2)
"""


@pytest.mark.long
def test_killed_while_it_is_filled(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "cache"), str(log)]
    with started(command) as process:
        wait_for("sixteen images", lambda: log.exists() and len(log.read_text().split()) >= 16, of=process)
        process.send_signal(signal.SIGKILL)
        assert process.wait(DEADLINE) == -signal.SIGKILL
    before = len(log.read_text().split())
    finished = sum(len(piece.contents) for piece in collection(tmp_path / "cache").pieces())
    assert 0 < finished < N
    with only(tmp_path / "cache", ".rows").open("ab") as rows:
        rows.write(b"half a row")
    subprocess.run(command, check=True, timeout=DEADLINE)
    assert len(log.read_text().split()) - before == N - finished  # nothing finished is computed again
    found = stored(tmp_path / "cache", None)
    assert np.array_equal(np.asarray(found), value(range(N), range(3)))


@pytest.mark.long
def test_two_processes_share_the_work_of_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "cache"), str(log)]
    with started(command) as first, started(command) as second:
        assert [process.wait(DEADLINE) for process in (first, second)] == [0, 0]
    assert sorted(map(int, log.read_text().split())) == list(range(N))


def test_processes_with_other_images_do_not_wait(tmp_path: Path) -> None:
    stored(tmp_path, Counter(), range(20))
    with FileLock(only(tmp_path, ".rows").with_suffix(".lock")):  # another process is writing
        assert np.array_equal(np.asarray(stored(tmp_path, Counter())), value(range(N), range(3)))
    assert len(list((tmp_path / "features").glob("*/*.rows"))) == 2


# --- housekeeping ---------------------------------------------------------------------------------------------------


def test_list_and_clear(tmp_path: Path) -> None:
    for x in (1, 2):
        stored(tmp_path, Counter(), about={"x": x})
    infos = list_caches(tmp_path)
    assert [(info.images, info.views) for info in infos] == [(N, VIEWS), (N, VIEWS)]
    name = infos[0].folder.name
    assert [info.folder.name for info in clear_caches(tmp_path, name[:8])[0]] == [name]
    assert len(list_caches(tmp_path)) == 1
    assert len(clear_caches(tmp_path)[0]) == 1
    assert list_caches(tmp_path) == []


@pytest.mark.usefixtures("settled")
def test_folders_are_listed(tmp_path: Path) -> None:
    data, cache = layout_2(tmp_path / "data", per_class=2), tmp_path / "cache"
    found = Memory(cache).contents(files(data / "train"))
    Memory(cache).contents(files(data / "test"))
    stored_vectors(collection(cache), found, [{"view": "clean"}], Counter(), piece=8)
    (info,) = list_caches(cache, homes=True)
    assert info.homes == {str(data / "train"): len(found)}


def test_what_is_not_ours_is_neither_listed_nor_deleted(tmp_path: Path) -> None:
    stored(tmp_path, Counter())
    foreign = tmp_path / "features" / "mine" / ABOUT
    inside = only(tmp_path, ABOUT).parent / "thesis.txt"
    foreign.parent.mkdir()
    for file in (foreign, inside):
        file.write_text("years of work")
    assert len(clear_caches(tmp_path)[0]) == 1
    assert list_caches(tmp_path) == []
    assert foreign.read_text() == inside.read_text() == "years of work"


def test_damage_is_found_by_verifying(tmp_path: Path) -> None:
    stored(tmp_path, Counter())
    (info,) = list_caches(tmp_path)
    assert verify_cache(info) == (7, 0)
    flip_a_bit(tmp_path)
    assert verify_cache(info) == (6, 1)


@pytest.mark.usefixtures("settled")
def test_shrinking_keeps_what_is_of_use(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folders = [tmp_path / name for name in ("stays", "goes")]
    for folder in folders:
        folder.mkdir()
        for i in range(18):
            (folder / f"{i}.png").write_bytes(f"{folder.name} {i}".encode())
    shutil.copy(files(folders[0]).path(0), folders[1] / "copy.png")
    for folder in folders:
        found = Memory(cache).contents(files(folder))
        stored_vectors(collection(cache), found, [{"view": "clean"}], Counter(), piece=8)
    stored(cache, Counter())  # images in memory, of no folder
    flip_a_bit(cache)
    (info,) = list_caches(cache)
    assert shrink_cache(cache, info) > 0
    (info,) = list_caches(cache)
    assert info.images == 18 - 8 + 18 + N  # without a damaged piece; a copy is stored once
    shutil.rmtree(folders[1])
    assert shrink_cache(cache, info) > 0
    (info,) = list_caches(cache)
    assert info.images == 18 - 8 + N
    assert verify_cache(info)[1] == 0
    again = Counter()
    assert np.array_equal(np.asarray(stored(cache, again)), value(range(N), range(3)))
    assert again.rows == []
    (info,) = list_caches(cache)
    assert shrink_cache(cache, info) == 0


def test_caches_of_older_versions_are_said_to_be_old(tmp_path: Path) -> None:
    folder = tmp_path / "features" / ("0" * 24)
    folder.mkdir(parents=True)
    (folder / "array.bin").write_bytes(bytes(100))
    (folder / "pieces.bin").write_bytes(bytes(4))
    (folder / "lock").touch()
    (folder / ABOUT).write_text(
        json.dumps({"backbone": "lite0", "shape": [5, 7, 1280], "preprocessing": {"size": 128}})
    )
    (info,) = list_caches(tmp_path)
    assert (info.old, info.about["backbone"]) == (True, "lite0")
    assert shrink_cache(tmp_path, info) == info.bytes
    assert list_caches(tmp_path) == []


@pytest.mark.parametrize("text", ["{}", "[]", "{", None])
def test_a_damaged_description_is_listed_and_cleared(tmp_path: Path, text: str | None) -> None:
    stored(tmp_path, Counter())
    about = only(tmp_path, ABOUT)
    about.unlink()
    if text is not None:
        about.write_text(text)
    (info,) = list_caches(tmp_path)
    assert (info.about, info.images) == ({}, 0)
    assert len(clear_caches(tmp_path)[0]) == 1
    assert list((tmp_path / "features").iterdir()) == []


@pytest.mark.parametrize("remembered", [True, False])
def test_every_piece_of_a_large_collection_is_verified_unless_nothing_can_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remembered: bool
) -> None:
    """A piece of zeros in a finished cache above 256 MB was served, because only a sample was verified."""
    monkeypatch.setattr(collection_module, "VERIFIED_IN_FULL", 0)
    boot = tmp_path / "boot"
    if remembered:
        boot.write_text("first")
    monkeypatch.setattr(verified, "_BOOT", boot)
    numbers = range(2400)  # 300 pieces
    stored(tmp_path, Counter(), numbers)  # verified at the end
    checked: list[int] = []
    is_whole = Collection.is_whole

    def counted(self: Collection, piece: Any) -> bool:
        checked.append(piece.first)
        return is_whole(self, piece)

    monkeypatch.setattr(Collection, "is_whole", counted)

    def count() -> int:
        checked.clear()
        computed = Counter()
        stored(tmp_path, computed, numbers)
        assert computed.rows == []
        return len(checked)

    assert (count() < 100) == remembered
    if remembered:
        boot.write_text("second")  # the machine was started again, and may have lost pages
        assert count() == 300
        assert count() < 100
    rows = only(tmp_path, ".rows")
    with rows.open("r+b") as file:
        file.seek(137 * 8 * len(VIEWS) * WIDTH * 4)
        file.write(bytes(8 * len(VIEWS) * WIDTH * 4))
    computed = Counter()
    found = stored(tmp_path, computed, numbers)
    assert len(computed.rows) == 8
    assert np.array_equal(np.asarray(found), value(numbers, range(3)))


def test_a_collection_in_use_is_left_alone(tmp_path: Path) -> None:
    stored(tmp_path, Counter())
    with FileLock(only(tmp_path, ".rows").with_suffix(".lock")):
        gone, left = clear_caches(tmp_path)
    assert (len(gone), len(left)) == (0, 1)
    assert np.array_equal(np.asarray(stored(tmp_path, None)), value(range(N), range(3)))


def test_features_that_can_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path, Counter())
    monkeypatch.setattr("selftrain.data.features.collection.os.access", lambda path, mode: False)
    monkeypatch.setattr("selftrain.data.features.store.FileLock", None)  # there is no place for a lock
    assert np.array_equal(np.asarray(stored(tmp_path, None)), value(range(N), range(3)))
    with pytest.raises(UserError, match="incomplete, and cannot be written"):
        stored(tmp_path, None, range(N + 1))


def test_an_empty_variable_is_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_root() == Path.home() / ".cache" / "selftrain"
