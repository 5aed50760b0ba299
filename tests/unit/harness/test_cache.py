"""What the cache has is made of what it should be: no test runs on an older state of its inputs."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import assets, cache
from tests.support.image import builder
from tests.support.tiers import TierError

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))


def writes(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "file").write_text(text)


def fails(_: Path) -> None:
    raise AssertionError("made again")


def test_a_key_tells_parts_apart(tmp_path: Path) -> None:
    file = tmp_path / "name"
    file.write_text("content")
    keys = [cache.key("ab", "c"), cache.key("a", "bc"), cache.key("abc"), cache.key(file), cache.key("name", "content")]
    file.write_text("other")
    assert len({*keys, cache.key(file)}) == 6
    assert cache.key("ab", "c") == keys[0]


def test_an_entry_is_made_again_only_without_its_stamp_and_what_fails_leaves_nothing_that_counts() -> None:
    with pytest.raises(AssertionError, match="made again"):
        cache.entry("kind", "a", fails)
    place = cache.entry("kind", "a", writes("first"))
    assert cache.entry("kind", "a", fails) == place
    assert (place / "file").read_text() == "first"
    (place / cache.STAMP).unlink()
    (place / "rest").touch()
    assert cache.entry("kind", "a", writes("second")) == place
    assert {path.name: path.read_text() for path in place.iterdir() if path.name != cache.STAMP} == {"file": "second"}


@pytest.mark.parametrize(("days", "size", "kept"), [(13, 1, True), (15, 1, False), (1, 0, False), (0, 0, True)])
def test_an_entry_goes_that_was_not_used_for_long_or_is_beyond_the_bound(
    days: int, size: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_BYTES", size * cache.MAX_BYTES)
    place = cache.entry("kind", "a", writes("x"))
    cache.prune(time.time() + days * 24 * 3600.0)
    assert place.exists() is kept


def test_what_another_process_makes_or_has_removed_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    place = cache.entry("kind", "a", writes("x"))
    fresh = place.with_name("kind-b.fresh")
    fresh.mkdir()
    (fresh / cache.STAMP).touch()
    gone = place.with_name("kind-c")
    monkeypatch.setattr(Path, "glob", lambda *_: [one / cache.STAMP for one in (place, fresh, gone)])
    cache.prune(time.time() + 2 * cache.KEPT_S)
    assert (place.exists(), fresh.exists()) == (False, True)


def test_a_tool_whose_archive_is_wrong_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared/vap"
    shared.mkdir(parents=True)
    (shared / "tool-1.0-linux-amd64.tar.xz").write_text("another one")
    digest = hashlib.sha256(b"the archive").hexdigest()
    (shared / "SHA256SUMS").write_text(f"{digest}  tool-1.0-linux-amd64.tar.xz\n")
    with pytest.raises(TierError, match="does not match its SHA256SUMS"):
        assets.tool("tool", tmp_path / "checkout")


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
