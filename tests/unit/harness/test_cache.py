"""The cache that checkouts share: entries are whole, made once, in use or removed; and what the tiers take from it."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import assets, cache
from tests.support.assets import Assets
from tests.support.image import builder
from tests.support.tiers import TierError

DAY_S = 24 * 3600.0
CHECKOUT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_held", {})


def writes(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "file").write_text(text)


def fails(_: Path) -> None:
    raise AssertionError("made again")


def used_by_an_ended_process(name: str, text: str = "") -> Path:
    """An entry that no process holds."""
    place = cache.entry("kind", name, writes(text))
    os.close(cache._held.pop(place))
    return place


def age(place: Path, age_s: float) -> None:
    then = time.time() - age_s
    os.utime(f"{place}.lock", (then, then))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (("/a", "/x"), "/a"),
        (("", "/x"), "/x/driver-manager-tests"),
        (("", "relative"), "/h/.cache/driver-manager-tests"),
        (("", ""), "/h/.cache/driver-manager-tests"),
    ],
)
def test_the_cache_is_where_the_environment_names_it(
    variables: tuple[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in zip((cache.VARIABLE, "XDG_CACHE_HOME", "HOME"), (*variables, "/h"), strict=True):
        monkeypatch.setenv(name, value)
    assert cache.folder() == Path(expected)


def test_a_key_tells_parts_apart(tmp_path: Path) -> None:
    file = tmp_path / "name"
    file.write_text("content")
    keys = [cache.key("ab", "c"), cache.key("a", "bc"), cache.key("abc"), cache.key(file), cache.key("name", "content")]
    file.write_text("other")
    assert len({*keys, cache.key(file)}) == 6
    assert cache.key("ab", "c") == keys[0]


@pytest.mark.parametrize("is_held", [True, False])
def test_an_entry_is_made_again_only_without_its_stamp(is_held: bool) -> None:
    place = cache.entry("kind", "a", writes("first")) if is_held else used_by_an_ended_process("a", "first")
    assert cache.entry("kind", "a", fails) == place
    assert (place / "file").read_text() == "first"
    (place / cache.STAMP).unlink()
    (place / "rest").touch()
    assert cache.entry("kind", "a", writes("second")) == place
    assert {path.name: path.read_text() for path in place.iterdir() if path.name != cache.STAMP} == {"file": "second"}


def test_what_fails_leaves_nothing_that_counts_and_goes_in_time() -> None:
    with pytest.raises(AssertionError, match="made again"):
        cache.entry("kind", "a", fails)
    assert [path.name for path in cache.folder().iterdir()] == ["kind-a.lock"]
    assert cache.prune(time.time()) == []
    assert cache.prune(time.time() + 15 * DAY_S) == ["kind-a"]
    assert list(cache.folder().iterdir()) == []


def test_what_a_killed_process_has_left_is_made_again() -> None:
    left = cache.folder() / "kind-a.fresh"
    left.mkdir(parents=True)
    (left / "half").touch()
    place = cache.entry("kind", "a", writes("whole"))
    assert not (place / "half").exists()
    assert not left.exists()


def test_processes_that_want_an_entry_at_once_make_it_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    code = f"""
import time
from pathlib import Path
from tests.support import cache

def make(folder):
    with Path({str(log)!r}).open("a") as log:
        log.write("made\\n")
    time.sleep(0.2)
    (folder / "file").write_text("whole")

print((cache.entry("kind", "a", make) / "file").read_text())
"""
    words = [sys.executable, "-S", "-c", code]
    started = [subprocess.Popen(words, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=120)[0] for process in started] == ["whole\n"] * 3
    assert log.read_text() == "made\n"


def test_entries_that_were_not_used_for_long_are_removed_unless_one_is_in_use() -> None:
    held, *ended = (cache.entry("kind", "held", writes("")), *map(used_by_an_ended_process, ("old", "again", "young")))
    for place, days in zip((held, *ended), (15, 15, 15, 13), strict=True):
        age(place, days * DAY_S)
    used_by_an_ended_process("again")  # a use counts from when it began
    assert cache.prune(time.time()) == ["kind-old"]
    left = [f"kind-{name}{end}" for name in ("again", "held", "young") for end in ("", ".lock")]
    assert sorted(path.name for path in cache.folder().iterdir()) == left


def test_the_oldest_entries_beyond_the_size_bound_are_removed_but_none_of_the_last_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, hours in (("a", 5.0), ("b", 4.0), ("c", 3.0)):
        age(used_by_an_ended_process(name, "x" * 100), hours * 3600)
    monkeypatch.setattr(cache, "MAX_BYTES", 250)
    assert cache.prune(time.time()) == ["kind-a"]
    age(used_by_an_ended_process("b"), 0.0)
    monkeypatch.setattr(cache, "MAX_BYTES", 0)
    assert cache.prune(time.time()) == ["kind-c"]
    assert cache.prune(time.time() + cache.RECENT_S + 60) == ["kind-b"]


def test_making_one_entry_removes_old_ones() -> None:
    age(used_by_an_ended_process("old"), 15 * DAY_S)
    cache.entry("kind", "new", writes(""))
    assert not (cache.folder() / "kind-old").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
    with pytest.raises(TierError, match=cache.VARIABLE):
        cache.entry("kind", "a", fails)


TOOLS = Assets("pair of tools", "TEST_TOOLS", "tools", "archived", ("first", "second"))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(TOOLS.variable, raising=False)
    made = tmp_path / "checkout"
    made.mkdir()
    return made


def fill(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch(0o755)
    return folder


def pack(checkout: Path, *names: str, wrong: str = "") -> Path:
    """An archive of tools beside the checkout, with a checksum that does not hold for the one that is `wrong`."""
    folder = checkout.parent / "shared" / TOOLS.archived
    folder.mkdir(parents=True)
    lines = []
    with tarfile.open(folder / "tools.tar.xz", "w:xz") as archive:
        for name in (*names, "not-in-sums"):
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(name)
            archive.addfile(entry, io.BytesIO(name.encode()))
            digest = hashlib.sha256(b"other" if name == wrong else name.encode()).hexdigest()
            lines += [f"{digest}  {name}\n"] if name in names else []
    (folder / "SHA256SUMS").write_text("".join(lines))
    return folder / "tools.tar.xz"


def test_assets_that_the_environment_names_come_first(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(checkout / "build/tools", "first", "second")
    named = fill(checkout.parent / "named", "first", "second")
    monkeypatch.setenv(TOOLS.variable, str(named))
    assert TOOLS.folder(checkout) == named
    (named / "second").chmod(0o644)
    with pytest.raises(TierError, match=f"^TEST_TOOLS={named} lacks second$"):
        TOOLS.folder(checkout)


def test_assets_of_the_checkout_come_before_the_archive(checkout: Path) -> None:
    pack(checkout, "first", "second")
    fill(checkout / "build/tools", "first")
    assert TOOLS.folder(checkout).parent == cache.folder()
    fill(checkout / "build/tools", "second")
    assert TOOLS.folder(checkout) == checkout / "build/tools"


def test_the_archive_is_unpacked_once_for_each_content(checkout: Path) -> None:
    archive = pack(checkout, "first", "second")
    found = TOOLS.folder(checkout)
    assert sorted(path.name for path in found.iterdir()) == [cache.STAMP, "first", "second"]
    assert os.access(found / "first", os.X_OK)
    (found / "first").write_text("changed")
    assert TOOLS.folder(checkout) == found
    assert (found / "first").read_text() == "changed"
    shutil.rmtree(archive.parent)
    pack(checkout, "first", "second", "third")
    assert (TOOLS.folder(checkout) / "third").read_text() == "third"


def test_an_archive_that_is_wrong_or_absent_is_refused(checkout: Path) -> None:
    with pytest.raises(TierError, match=r"^no pair of tools: set TEST_TOOLS or fill build/tools$"):
        TOOLS.folder(checkout)
    archive = pack(checkout, "first", "second", wrong="second")
    with pytest.raises(TierError, match=f"^{archive} does not match its SHA256SUMS: second$"):
        TOOLS.folder(checkout)
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(TierError, match=r"cannot be unpacked|does not match"):
        TOOLS.folder(checkout)
    assert [path.suffix for path in cache.folder().iterdir()] == [".lock"] * 2
    shutil.rmtree(archive.parent)
    archive = pack(checkout, "first")
    with pytest.raises(TierError, match=f"^{archive} lacks second$"):
        TOOLS.folder(checkout)


def pack_tool(checkout: Path, member: str = "tool", *, wrong: bool = False) -> Path:
    """The archive of a single program, beside the checkout."""
    shared = checkout.parent / "shared/vap"
    shared.mkdir(parents=True)
    (shared / "program").write_text("content")
    archive = shared / "tool-1.0-linux-amd64.tar.xz"
    with tarfile.open(archive, "w:xz") as packed:
        packed.add(shared / "program", member)
    digest = hashlib.sha256(b"" if wrong else archive.read_bytes()).hexdigest()
    (shared / "SHA256SUMS").write_text(f"{digest}  {archive.name}\n")
    return archive


def test_a_single_tool_is_that_of_the_build_else_of_its_archive(checkout: Path) -> None:
    with pytest.raises(TierError, match=r"^no tool: fill build/vap$"):
        assets.tool("tool", checkout)
    pack_tool(checkout)
    found = assets.tool("tool", checkout)
    assert (found.read_text(), os.access(found, os.X_OK), found.parents[1]) == ("content", True, cache.folder())
    fill(checkout / "build/vap", "tool")
    assert assets.tool("tool", checkout) == checkout / "build/vap/tool"


@pytest.mark.parametrize(
    ("member", "wrong", "said"),
    [("tool", True, "does not match its SHA256SUMS"), ("other", False, "cannot be unpacked")],
)
def test_a_tool_whose_archive_is_wrong_is_refused(checkout: Path, member: str, wrong: bool, said: str) -> None:
    archive = pack_tool(checkout, member, wrong=wrong)
    with pytest.raises(TierError, match=f"^{archive} {said}"):
        assets.tool("tool", checkout)


@pytest.mark.parametrize(
    ("changed", "differs"),
    [
        ("driver_manager/cli/main.py", (False, True)),
        ("pyproject.toml", (False, True)),
        ("requirements/runtime.lock", (True, True)),
        ("images/prune.py", (True, True)),
        ("Containerfile", (True, True)),
        ("driver_manager/__pycache__/main.pyc", (False, False)),
        ("tests/support/cache.py", (False, False)),
    ],
)
def test_a_change_of_the_package_alone_keeps_the_images_dependencies(
    changed: str, differs: tuple[bool, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keys(place: Path) -> list[str]:
        monkeypatch.setattr(builder, "CHECKOUT", place)
        for name in builder.INPUTS:
            source = place / name
            folder = source if (CHECKOUT / name).is_dir() else source.parent
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "file" if folder == source else source).touch()
        return [cache.key(*builder._inputs(names)) for names in (builder.INPUTS_OF_DEPENDENCIES, builder.INPUTS)]

    before = keys(tmp_path / "one")
    assert keys(tmp_path / "two") == before
    (tmp_path / "two" / changed).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "two" / changed).write_text("changed")
    assert [one != other for one, other in zip(before, keys(tmp_path / "two"), strict=True)] == list(differs)
