"""A folder that is swapped for a symlink between a look and the next leads nobody out of the host's root."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from driver_manager.adapters.host import files as host_files
from driver_manager.adapters.host.files import FOLDER_MODE, MAX_LINKS, HostFiles, Missing, OpenEntry, place, resolve
from driver_manager.domain.errors import ConfigError

STATE = "/run/rbln/state"
STEPS = 12
"""No operation opens more on its way."""

RACE_S = 1.5
PATIENCE_S = 60.0
"""On a busy machine the folder may be its own only when nobody looks, for seconds."""


class Case:
    """A host root beside a folder of the container that looks the same; `swap` puts a symlink to it in the way."""

    def __init__(self, top: Path) -> None:
        self.root, self.outside = top / "host", top / "container"
        for folder in (self.root / "run/rbln", self.outside):
            folder.mkdir(parents=True)
        for name in ("state", "aside"):
            (self.root / "run/rbln" / name).write_text("host")
            (self.outside / name).write_text("container")
        self.files = HostFiles(self.root, self.root / "proc")
        self.before = self.contents()

    def swap(self) -> None:
        (self.root / "run/rbln").rename(self.root / "run/moved")
        (self.root / "run/rbln").symlink_to(self.outside)

    def contents(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.outside.iterdir()}


READS: dict[str, Callable[[HostFiles], object]] = {
    "read": lambda files: files.read(STATE),
    "names": lambda files: sorted(files.names("/run/rbln")),
}
WRITES: dict[str, Callable[[HostFiles], object]] = {
    "write": lambda files: files.write(STATE, "ours"),
    "create": lambda files: files.create("/run/rbln/new", "ours"),
    "remove": lambda files: files.remove(STATE),
    "put aside": lambda files: files.put_aside(STATE, "aside"),
    "put back": lambda files: files.put_back("/run/rbln/absent", "aside"),
    "lock": lambda files: os.close(files.open_lock("/run/rbln/lock")),
}


def act_with_a_swap_before(step: int, case: Case, act: Callable[[HostFiles], object]) -> object:
    """What `act` says where the folder is swapped right before the `step`-th opening; None where it is refused."""
    real, count = os.open, 0

    def opens(*arguments: object, **options: object) -> int:
        nonlocal count
        count += 1
        if count == step:
            case.swap()
        return real(*arguments, **options)  # type: ignore[arg-type]  # as given

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(OSError, ConfigError):
        patch.setattr(os, "open", opens)
        return act(case.files)
    return None


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_nothing_of_the_container_is_read_whenever_the_folder_is_swapped(tmp_path: Path, step: int, name: str) -> None:
    case = Case(tmp_path)
    (case.outside / "of the container").write_text("x")
    seen = act_with_a_swap_before(step, case, READS[name])
    assert seen in (None, "host", ["aside", "state"])


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_nothing_of_the_container_is_written_whenever_the_folder_is_swapped(
    tmp_path: Path, step: int, name: str
) -> None:
    case = Case(tmp_path)
    act_with_a_swap_before(step, case, WRITES[name])
    assert case.contents() == case.before


@contextmanager
def place_by_name(
    root: Path, path: str, *, follow_last: bool = False, missing: Missing = Missing.RAISE
) -> Generator[OpenEntry, None, None]:
    """The usual mistake: the path is resolved and checked first, and used by its name afterwards."""
    found = resolve(root, path, follow_last=follow_last)
    folder = os.open(found.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield OpenEntry(folder, found.name, found)
    finally:
        os.close(folder)


@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_whoever_checks_by_name_and_opens_by_name_is_caught(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_files, "place", place_by_name)
    caught = False
    for step in range(1, STEPS + 1):
        case = Case(tmp_path / str(step))
        seen = act_with_a_swap_before(step, case, {**READS, **WRITES}[name])
        caught = caught or seen in ("container", ["aside", "new", "state"]) or case.contents() != case.before
    # What lists a folder opens it without following, whichever way it came to its name.
    assert caught is (name != "names")


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_folder_that_is_swapped_all_the_time_leads_nobody_out(tmp_path: Path) -> None:
    case = Case(tmp_path)
    (case.outside / "of the container").write_text("x")
    case.before = case.contents()
    real, moved = case.root / "run/rbln", case.root / "run/moved"
    is_over = threading.Event()

    def swaps() -> None:
        while not is_over.is_set():
            case.swap()
            real.unlink()
            moved.rename(real)

    thread = threading.Thread(target=swaps)
    thread.start()
    seen: set[str | None] = set()
    try:
        began_s = time.monotonic()
        while (took_s := time.monotonic() - began_s) < RACE_S or ("host" not in seen and took_s < PATIENCE_S):
            with contextlib.suppress(OSError):
                seen.add(case.files.read(STATE))
            for act in (case.files.remove, lambda path: case.files.put_aside(path, "aside")):
                with contextlib.suppress(OSError):
                    act("/run/rbln/of the container")
    finally:
        is_over.set()
        thread.join()
    assert case.contents() == case.before
    assert "container" not in seen
    assert "host" in seen, "else this shows nothing"


# the way itself


def test_a_place_is_where_the_resolved_path_is(tmp_path: Path) -> None:
    (tmp_path / "run/rbln").mkdir(parents=True)
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    (tmp_path / "up").symlink_to("../../../run")
    for path in ("/run/rbln/x", "/var/run/rbln/x", "/up/rbln/x", "/../../run/./rbln//x", "/var/run/../up/rbln/x"):
        with place(tmp_path, path) as where:
            assert where.path == tmp_path / "run/rbln/x"
            assert os.path.samestat(os.fstat(where.folder), (tmp_path / "run/rbln").stat())


def test_a_root_by_a_link_is_entered_and_dots_do_not_leave_it(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "link").symlink_to("host")
    (tmp_path / "secret").write_text("container")
    for path in ("/../secret", "/../../secret", "secret"):
        with place(tmp_path / "link", path) as where:
            assert not os.access(where.name, os.F_OK, dir_fd=where.folder)


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_no_folder_stays_open_whatever_happens(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/loop").symlink_to("loop")
    (tmp_path / "a/file").touch()
    before = open_descriptors()
    for path in ("/a/b/c/x", "/a/loop/x", "/a/file/x", "/a/absent/x", "/a/b/../b/../b/x", "/"):
        with contextlib.suppress(OSError), place(tmp_path, path, follow_last=True):
            pass
    with pytest.raises(NotADirectoryError), place(tmp_path / "a/file", "/x"):
        pass
    assert open_descriptors() == before


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_folders_and_files_have_the_mode_that_is_meant_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    files = HostFiles(tmp_path, tmp_path / "proc")
    before = os.umask(mask)
    try:
        files.write("/run/made/deep/public", "x")
        files.write("/run/made/deep/private", "x", 0o600)
        files.create("/run/made/deep/new", "x")
        os.close(files.open_lock("/run/made/deep/lock"))
        host_files.replace_file(tmp_path / "textfile.prom", "x")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o7777 for path in (tmp_path / "run/made").rglob("*")}
    lock = modes.pop("lock")
    assert modes == {"deep": FOLDER_MODE, "public": 0o644, "private": 0o600, "new": 0o644}
    assert lock == 0o600 & ~mask
    assert (tmp_path / "run/made").stat().st_mode & 0o7777 == FOLDER_MODE
    assert (tmp_path / "textfile.prom").stat().st_mode & 0o7777 == 0o644


def test_a_textfile_is_replaced_and_a_link_in_its_place_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "metrics.prom").symlink_to("kept")
    host_files.replace_file(tmp_path / "metrics.prom", "ours")
    assert (tmp_path / "kept").read_text() == "kept"
    assert (tmp_path / "metrics.prom").read_text() == "ours"


def test_as_many_links_as_the_kernel_follows_are_walked(tmp_path: Path) -> None:
    (tmp_path / "end").mkdir()
    for number in range(MAX_LINKS):
        (tmp_path / f"l{number}").symlink_to(f"l{number + 1}" if number < MAX_LINKS - 1 else "end")
    with place(tmp_path, "/l0/x") as where:
        assert where.path == tmp_path / "end/x"
    (tmp_path / "more").symlink_to("l0")
    with pytest.raises(OSError, match="symbolic links"), place(tmp_path, "/more/x"):
        pass
