"""Paths of the host stay inside its root, files are replaced whole or not at all, and a dead process holds no lock."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict
from pyfakefs import helpers
from pyfakefs.fake_filesystem import FakeFilesystem

from driver_manager.adapters.host import files as host_files
from driver_manager.adapters.host.files import MAX_LINKS, HostFiles, Missing, OpenEntry, WorkLock, place, resolve
from driver_manager.adapters.host.system import LinuxHost, Ownership, unwritable
from driver_manager.domain.errors import ConfigError, OwnedElsewhere
from driver_manager.domain.journal import Owner
from driver_manager.domain.profile import OwnFile
from driver_manager.profiles import builtin
from tests.support.control_plane.container import unshare
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.host_documents import DOCUMENTS, HostDocument, roots_of
from tests.support.fakes.host_documents import PROFILE as ASCEND
from tests.support.fakes.host_folders import failing
from tests.support.fakes.pace import patient

PROFILE = builtin()["rebellions"]
RECORD, LOCK = PROFILE.paths.load_record, PROFILE.paths.effect_lock
STATE = "/run/rbln/state"
TIMEOUT_S = 60.0
Patch = pytest.MonkeyPatch
Way = Callable[[Path, str], Path]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host root beside a secret that no path may reach."""
    (tmp_path / "secret").write_text("container")
    root = tmp_path / "host"
    (root / "run/rbln").mkdir(parents=True)
    (root / "etc").mkdir()
    return root


@pytest.fixture
def files(host: Path) -> HostFiles:
    return HostFiles(host, host / "proc")


def link(at: Path, target: str) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(target)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def placed(root: Path, path: str) -> Path:
    """The path of the open folder and the name in it, entered through a link to the root."""
    if not (root.parent / "alias").exists():
        (root.parent / "alias").symlink_to(root)
    with place(root.parent / "alias", path, follow_last=True, missing=Missing.MAKE) as where:
        found = Path(f"/proc/self/fd/{where.folder}").readlink() / where.name
        assert where.path == root.parent / "alias" / found.relative_to(root)
        return found


WAYS = pytest.mark.parametrize("way", [resolve, placed])


@WAYS
@pytest.mark.parametrize(
    ("links", "path", "inside"),
    [
        ({}, "/run/rbln", "run/rbln"),
        ({}, "//run/./rbln/", "run/rbln"),
        ({}, "/", "."),
        ({}, "/run/absent/x", "run/absent/x"),
        ({}, "/../../secret", "secret"),
        ({}, "/run/../../../secret", "secret"),
        ({"var/run": "/run"}, "/var/run/rbln", "run/rbln"),
        ({"var/run": "../run"}, "/var/run/rbln", "run/rbln"),
        ({"out": "../secret"}, "/out", "secret"),
        ({"out": "/../secret"}, "/out", "secret"),
        ({"run/deep": "../../../../secret"}, "/run/deep", "secret"),
        ({"a": "/b", "b": "/c", "c": "run"}, "/a/rbln", "run/rbln"),
        ({"var/run": "/run"}, "/var/run/../etc", "etc"),
    ],
)
def test_no_path_leads_out_of_the_host(host: Path, way: Way, links: dict[str, str], path: str, inside: str) -> None:
    for at, target in links.items():
        link(host / at, target)
    assert way(host, path) == host / inside


@given(parts=st.lists(st.sampled_from(["..", "a", "up", "abs", "loop", "run", ".", ""]), max_size=8))
def test_no_mixture_of_dots_and_links_leads_out(parts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("host")
    for name, target in (("up", "../../.."), ("abs", "/.."), ("loop", "up/up")):
        link(root / name, target)
    found = resolve(root, "/" + "/".join(parts))
    assert found.is_relative_to(root)
    assert ".." not in found.parts


@WAYS
def test_as_many_links_as_the_kernel_follows_are_followed(host: Path, way: Way) -> None:
    for number in range(MAX_LINKS):
        link(host / f"l{number}", f"l{number + 1}")
    (host / f"l{MAX_LINKS}").mkdir()
    assert way(host, "/l0/x") == host / f"l{MAX_LINKS}/x"
    for at, target in (("more", "l0"), ("loop", "loop"), ("a", "/b"), ("b", "/a")):
        link(host / at, target)
    for path in ("/more/x", "/loop/x", "/a/x"):
        with pytest.raises(OSError, match="symbolic links") as caught:
            way(host, path)
        assert caught.value.errno == errno.ELOOP


def test_the_last_link_is_kept_where_it_is_to_be_replaced(host: Path, files: HostFiles) -> None:
    link(host / "var/run", "/run")
    link(host / "run/file", "/etc/other")
    assert resolve(host, "/var/run/file", follow_last=False) == host / "run/file"
    assert resolve(host, "/var/run/file") == host / "etc/other"
    assert (files.real("/var/run/rbln/driver"), files.real("/")) == ("/run/rbln/driver", "/")


def test_no_folder_stays_open_whatever_happens(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/loop").symlink_to("loop")
    (tmp_path / "a/file").touch()
    before = len(names(Path("/proc/self/fd")))
    for path in ("/a/b/c/x", "/a/loop/x", "/a/file/x", "/a/absent/x", "/a/b/../b/../b/x", "/"):
        with contextlib.suppress(OSError), place(tmp_path, path, follow_last=True):
            pass
    with pytest.raises(NotADirectoryError), place(tmp_path / "a/file", "/x"):
        pass
    assert len(names(Path("/proc/self/fd"))) == before


class Swapped:
    """A host root beside a folder of the container that looks the same; `swap` puts a symlink to it in the way."""

    def __init__(self, top: Path) -> None:
        self.root, self.outside = top / "host", top / "container"
        for folder in (self.root / "run/rbln", self.outside):
            folder.mkdir(parents=True)
        for name in ("state", "aside"):
            (self.root / "run/rbln" / name).write_text("host")
            (self.outside / name).write_text("container")
        (self.outside / "of the container").write_text("x")
        self.files = HostFiles(self.root, self.root / "proc")
        self.before = self.contents()

    def swap(self) -> None:
        (self.root / "run/rbln").rename(self.root / "run/moved")
        (self.root / "run/rbln").symlink_to(self.outside)

    def contents(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.outside.iterdir()}


ACTS: dict[str, Callable[[HostFiles], object]] = {
    "read": lambda files: files.read(STATE),
    "names": lambda files: files.names("/run/rbln"),
    "write": lambda files: files.write(STATE, "ours"),
    "create": lambda files: files.create("/run/rbln/new", "ours"),
    "remove": lambda files: files.remove(STATE),
    "put aside": lambda files: files.put_aside(STATE, "aside"),
    "put back": lambda files: files.put_back("/run/rbln/absent", "aside"),
    "lock": lambda files: os.close(files.open_lock("/run/rbln/lock")),
}


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("step", range(1, 31))  # no operation opens more on its way
def test_nothing_of_the_container_is_touched_when_the_folder_is_swapped(tmp_path: Path, step: int, name: str) -> None:
    case, real, count, seen = Swapped(tmp_path), os.open, 0, None

    def opens(*arguments: object, **options: object) -> int:
        nonlocal count
        count += 1
        if count == step:
            case.swap()
        return real(*arguments, **options)  # type: ignore[arg-type]  # as given

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(OSError, ConfigError):
        patch.setattr(os, "open", opens)
        seen = ACTS[name](case.files)
    assert name != "read" or seen in (None, "host")
    assert not isinstance(seen, list) or sorted(seen) == ["aside", "state"]
    assert case.contents() == case.before


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_folder_that_is_replaced_all_the_time_never_leads_outside_the_root(tmp_path: Path) -> None:
    case, is_over, seen = Swapped(tmp_path), threading.Event(), set[str | None]()

    def swaps() -> None:
        while not is_over.is_set():
            case.swap()
            (case.root / "run/rbln").unlink()
            (case.root / "run/moved").rename(case.root / "run/rbln")

    thread = threading.Thread(target=swaps)
    thread.start()
    try:
        began_s = time.monotonic()
        # On a busy machine the folder may be its own only between two looks, for seconds.
        while (took_s := time.monotonic() - began_s) < 1.5 or ("host" not in seen and took_s < 60.0):
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


def test_the_first_part_of_a_file_is_read_and_what_is_not_there_is_none(host: Path, files: HostFiles) -> None:
    most = host_files.MAX_READ_BYTES
    (host / "etc/file").write_text("x")
    (host / "etc/large").write_bytes(b"\xff" * (most + 10))
    link(host / "etc/dangling", "/nowhere")
    texts = {"absent": None, "file/below": None, "file": "x", "large": "\ufffd" * most, "dangling": None}
    assert {name: files.read(f"/etc/{name}") for name in texts} == texts
    assert [name for name in texts if files.exists(f"/etc/{name}")] == ["file", "large", "dangling"]
    with pytest.raises(IsADirectoryError):
        files.read("/etc")


def test_what_is_no_regular_file_is_refused_and_does_not_hold_the_run(host: Path, files: HostFiles) -> None:
    for name in ("fifo", "written"):
        os.mkfifo(host / "etc" / name)
    with (host / "etc/written").open("r+b", buffering=0), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(host / "etc/socket"))
        for root, path, why in (
            (files, "/etc/fifo", "not a regular file"),
            (files, "/etc/written", "not a regular file"),
            (HostFiles(Path("/"), Path("/proc")), "/dev/zero", "not a regular file"),
            (files, "/etc/socket", "No such device"),
        ):
            with pytest.raises(OSError, match=why):
                root.read(path)


def test_a_link_in_the_files_place_is_replaced_not_followed(host: Path, files: HostFiles) -> None:
    folder = host / "run/rbln"
    link(folder / "state", "../../../secret")
    (host / "etc/passwd").write_text("root")
    for name in ("other", "textfile.prom", "removed"):
        link(folder / name, "/etc/passwd")
    for name in ("state", "other"):
        files.write(f"/run/rbln/{name}", "ours")
    host_files.replace_file(folder / "textfile.prom", "ours")
    for name in ("removed", "absent"):
        files.remove(f"/run/rbln/{name}")
    found = {path.name: "a link" if path.is_symlink() else path.read_text() for path in folder.iterdir()}
    assert found == dict.fromkeys(("other", "state", "textfile.prom"), "ours")
    assert ((host.parent / "secret").read_text(), (host / "etc/passwd").read_text()) == ("container", "root")


def test_a_failed_write_leaves_the_old_file_and_no_other(host: Path, files: HostFiles, monkeypatch: Patch) -> None:
    (host / "run/rbln/state").write_text("old")
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    for write, path in ((files.write, STATE), (files.create, "/run/rbln/new")):
        with pytest.raises(ConfigError, match=f"cannot write {path} .*No space left") as caught:
            write(path, "new")
        assert "/run/rbln" in caught.value.remedy
    assert (host / "run/rbln/state").read_text() == "old"
    assert names(host / "run/rbln") == ["state"]


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_folders_and_files_have_the_mode_that_is_meant_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    files = HostFiles(tmp_path, tmp_path / "proc")
    before = os.umask(mask)
    try:
        files.write("/run/made/deep/public", "x")
        files.write("/run/made/deep/private", "x", 0o600)
        files.create("/run/made/deep/new", "x")
        os.close(files.open_lock("/run/made/deep/lock"))
        host_files.replace_file(tmp_path / "run/textfile.prom", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "run/made/deep/public").read_text() == "x"
    modes = {path.name: path.stat().st_mode & 0o7777 for path in (tmp_path / "run").rglob("*")}
    assert modes.pop("lock") == 0o600 & ~mask
    public = dict.fromkeys(("public", "new", "textfile.prom"), 0o644)
    assert modes == {"made": host_files.FOLDER_MODE, "deep": host_files.FOLDER_MODE, "private": 0o600, **public}


def read_only(monkeypatch: Patch, folders: Iterable[Path], number: int = errno.EROFS) -> list[Path]:
    """Make writes below `folders` fail; the list of all targets that were tried."""
    tried: list[Path] = []
    real = host_files.replace_in

    def replace(where: OpenEntry, text: str, mode: int) -> None:
        tried.append(where.path)
        if any(where.path.is_relative_to(folder) for folder in folders):
            failing(number)()
        real(where, text, mode)

    monkeypatch.setattr(host_files, "replace_in", replace)
    return tried


@pytest.mark.parametrize("name", ["state", "evidence/of/1.txt"])
def test_a_folder_mounted_at_its_path_comes_first(host: Path, files: HostFiles, monkeypatch: Patch, name: str) -> None:
    own = host.parent / "mounted"
    both = (own, host / str(own).lstrip("/"))
    for folder in both:
        folder.mkdir(parents=True)
    same = {folder.stat().st_ino for folder in both}
    monkeypatch.setattr(os.path, "samestat", lambda one, other: {one.st_ino, other.st_ino} == same)
    tried = read_only(monkeypatch, [host])
    files.write(f"{own}/{name}", "x")
    assert tried == [own / name]
    with pytest.raises(ConfigError, match="Read-only file system") as caught:
        files.write("/run/not-mounted/1.txt", "x")
    assert caught.value.remedy == "Mount /run/not-mounted of the host read-write at the same path."


@pytest.mark.parametrize(("made", "path"), [("rbln", "run/rbln/state"), ("", "run/fresh/state"), ("", "var/run/state")])
def test_pid_1s_root_is_the_last_resort(host: Path, files: HostFiles, monkeypatch: Patch, made: str, path: str) -> None:
    view = host / "proc/1/root"
    (view / "run" / made).mkdir(parents=True)
    for root in (view, host):
        link(root / "var/run", "/run")
    inside = path.removeprefix("var/")
    for number in (errno.EACCES, errno.ENOSPC):
        with monkeypatch.context() as patch:
            tried = read_only(patch, [host / "run"], number)
            with pytest.raises(ConfigError):
                files.write(f"/{path}", "x")
        assert tried == [host / inside], "only a read-only file system leads to the next view"
    tried = read_only(monkeypatch, [host / "run"])
    files.write(f"/{path}", "x")
    assert tried == [host / inside, view / inside]
    assert (view / inside).read_text() == "x"


@pytest.mark.parametrize("number", [0, errno.EPERM, errno.EOPNOTSUPP], ids=["links", "forbidden", "without links"])
def test_nothing_takes_the_place_of_a_file(host: Path, files: HostFiles, monkeypatch: Patch, number: int) -> None:
    if number:
        monkeypatch.setattr(os, "link", failing(number))
    assert files.create("/run/new/marker", "ours\n")
    assert not files.create("/run/new/marker", "again\n")
    assert (host / "run/new/marker").read_text() == "ours\n"
    assert names(host / "run/new") == ["marker"]
    link(host / "run/new/dangling", "/nowhere")
    assert not files.create("/run/new/dangling", "x")
    ready = host / "run/rbln/.ready"
    ready.write_text("DRIVER=1\n")
    ready.chmod(0o640)
    before = ready.stat()
    files.put_aside("/run/rbln/.ready", ".aside")
    assert names(host / "run/rbln") == [".aside"]
    files.put_back("/run/rbln/.ready", ".aside")
    assert names(host / "run/rbln") == [".ready"]
    after = ready.stat()
    assert (after.st_ino, after.st_mode, after.st_mtime) == (before.st_ino, before.st_mode, before.st_mtime)
    files.put_aside("/run/rbln/.ready", ".aside")
    ready.write_text("new")
    files.put_back("/run/rbln/.ready", ".aside")
    assert (names(host / "run/rbln"), ready.read_text()) == ([".ready"], "new")


# what a write would meet, found before: compared with what a real write, removal or lock does


def apart(script: str, program: str, host: Path, *words: str) -> str:
    """What this Python program prints in namespaces of its own, after a shell's script in the host's folder."""
    argv = [*unshare(), "sh", "-c", f'{script} && exec "$@"', "sh", sys.executable, "-c", program, str(host), *words]
    ran = subprocess.run(argv, cwd=host, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


LOOK = """
import json, sys
from pathlib import Path
from driver_manager.adapters.host.files import HostFiles
files, path, lock = HostFiles(Path(sys.argv[1]), Path(sys.argv[1], "proc")), sys.argv[2], sys.argv[3]
before = sorted(str(one) for one in files.root.rglob("*"))
found = [files.why_not_writable(path), files.why_not_writable(path, tries=True), files.why_no_lock(lock)]
after = sorted(str(one) for one in files.root.rglob("*"))
really = ["", ""]
for number, act in enumerate((lambda: files.write(path, "text"), lambda: files.open_lock(lock))):
    try:
        act()
    except Exception as error:
        really[number] = getattr(error, "what", str(error))
print(json.dumps({"found": found, "really": really, "is_untouched": before == after}))
"""
FILL = "i=0; while touch run/rbln/f$i 2>/dev/null; do i=$((i+1)); done"
TMPFS = "mount -t tmpfs -o size=1m t run/rbln"
FEW_INODES = "mount -t tmpfs -o size=1m,nr_inodes=8 t run/rbln"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a file immutable")


@pytest.mark.parametrize(
    ("script", "record", "lock"),
    [
        ("true", "", ""),
        ("rm -r run", "", ""),
        (f"ln -sf /nowhere {RECORD[1:]}", "", ""),
        ("rm -r run/rbln; mkdir elsewhere; ln -s /elsewhere run/rbln", "", ""),
        (f"rm run/rbln/*; mkdir {RECORD[1:]}", "is a folder", ""),
        (f"mkdir {LOCK[1:]}", "", "is a folder"),
        (f"ln -s /nowhere {LOCK[1:]}", "", "Too many levels"),
        ("rm -r run/rbln; touch run/rbln", "Not a directory", "Not a directory"),
        ("rm -r run/rbln; ln -s rbln run/rbln", "Too many levels", "Too many levels"),
        (f"{FEW_INODES}; {FILL}", "has only 0 inodes left", "inodes left"),
        (f"{TMPFS}; cat /dev/zero > run/rbln/full 2>/dev/null; true", "has only 0 bytes left", "bytes left"),
        (f"{TMPFS}; mount -o remount,ro run/rbln", "Read-only file system", "Read-only file system"),
        (f"mount --bind {RECORD[1:]} {RECORD[1:]}", "Device or resource busy", ""),
        pytest.param(f"{TMPFS}; touch {RECORD[1:]}; chattr +i {RECORD[1:]}", "not permitted", "", marks=AS_ROOT),
        pytest.param(f"{TMPFS}; touch {RECORD[1:]}; chattr +a {RECORD[1:]}", "not permitted", "", marks=AS_ROOT),
        pytest.param(f"{TMPFS}; chattr +i run/rbln", "Permission denied", "Permission denied", marks=AS_ROOT),
    ],
)
def test_what_a_write_would_meet_is_found_without_one(host: Path, script: str, record: str, lock: str) -> None:
    (host / RECORD.lstrip("/")).touch()
    (host / "proc/1").mkdir(parents=True)
    saw = json.loads(apart(script, LOOK, host, RECORD, LOCK))
    for found, expected in zip(saw["found"], (record, record, lock), strict=True):
        assert expected in found, saw
        assert bool(found) == bool(expected), saw
    # A lock takes no block: it is refused for the record beside it.
    assert [bool(why) for why in saw["really"]] == [bool(record), bool(lock) and lock != "bytes left"], saw
    assert saw["is_untouched"]


def test_a_look_before_a_write_makes_nothing_and_keeps_room(host: Path, files: HostFiles, monkeypatch: Patch) -> None:
    for path, why in ((STATE, ""), ("/run/absent/deep/state", ""), ("/run/rbln", "/run/rbln is a folder")):
        assert files.why_not_writable(path) == why
    assert not (host / "run/absent").exists()
    for call in ("rename", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing(errno.EDQUOT))
            assert files.why_not_writable(RECORD) == "", "only a write finds it, and is taken back"
            assert files.why_not_writable(RECORD, tries=True) == f"{RECORD} cannot be written: Disk quota exceeded"
            with pytest.raises(ConfigError, match="Disk quota exceeded"):
                files.write(RECORD, "text")
            assert names(host / "run/rbln") == []
    for limit, why in (("MIN_FREE_INODES", " inodes left"), ("MIN_FREE_BYTES", " bytes left")):
        monkeypatch.setattr(host_files, limit, 2**80)
        assert files.why_not_writable(RECORD).endswith(why)


def test_each_record_lock_and_the_evidence_of_a_profile_is_looked_at(host: Path, files: HostFiles) -> None:
    paths = PROFILE.paths
    looked_at = {*paths.records("run"), *paths.locks(), f"{paths.evidence}/any", paths.run_record("run")}
    for path in looked_at:
        (host / path.lstrip("/")).mkdir(parents=True)
    assert unwritable(files, PROFILE, paths.records("run")).keys() == looked_at
    known = {*paths.records(), *paths.locks()}
    kept = {name for name, value in vars(type(paths)).items() if isinstance(value, property | OwnFile)}
    # Figures for metrics, and what health-watch, the rebooter and people write: no run fails without these.
    others = {"run_figures", "health_record", "mute_file", "ready_withdrawn", "rebooter_lock", "recovery_lock"}
    assert {name for name in kept if getattr(paths, name) not in known} == others | {"reboot_wish"}
    assert {asdict(paths)[name] for name in ("state_file", "load_record")} < known


# a simulated file system that fills up, or forbids writing; guest_tests/test_host_files_in_guest.py has a real one

SIMULATED = Path("/host")
ROOTS = roots_of(SIMULATED)
NEW = "the new one" * 400
FOLDERS = sorted({document.path.rpartition("/")[0] for document in DOCUMENTS.values()})


@pytest.fixture
def simulated(fs: FakeFilesystem) -> Iterator[FakeFilesystem]:
    """A host with the vendor's folders, and a process of its own."""
    for folder in (*FOLDERS, "/proc/1", "/sys/module", "/dev", "/sys/bus/pci/devices"):
        fs.create_dir(f"{SIMULATED}{folder}")
    yield fs
    helpers.reset_ids()


def nearly_fill(fs: FakeFilesystem) -> None:
    """Leave room for a file, and less than `NEW` needs."""
    fs.set_disk_usage(fs.get_disk_usage().used + 1_000)


def forbid(fs: FakeFilesystem) -> None:
    """Let nobody write into the folders that are there."""
    for folder in FOLDERS:
        fs.chmod(f"{SIMULATED}{folder}", 0o555)
    helpers.set_uid(1000)


@pytest.mark.parametrize(("ruin", "why"), [(nearly_fill, "No space left on device"), (forbid, "Permission denied")])
@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=list(DOCUMENTS))
def test_the_old_file_stays_whole_and_nothing_else_is_left(
    simulated: FakeFilesystem, document: HostDocument, ruin: Callable[[FakeFilesystem], None], why: str
) -> None:
    document.write(ROOTS, NEW)
    document.write(ROOTS, "the old one")
    file = Path(f"{SIMULATED}{document.path}")
    before, beside = simulated.get_object(str(file)).contents, names(file.parent)
    assert "the old one" in str(before)
    ruin(simulated)
    with pytest.raises(ConfigError, match=f"cannot write {document.path} on the host: {why}") as caught:
        document.write(ROOTS, NEW)
    assert document.path.rpartition("/")[0] in caught.value.remedy
    assert (simulated.get_object(str(file)).contents, names(file.parent)) == (before, beside)


def test_an_owner_that_cannot_be_noted_takes_the_note_of_the_one_before_away(simulated: FakeFilesystem) -> None:
    first, second = Owner(pid=7, start_ticks=1, boot_id="b"), Owner(pid=8, start_ticks=2, boot_id=NEW)
    ownership = Ownership(ROOTS.files(), ASCEND.paths, FakeClock())
    with ownership.turn() as note:
        assert note(first)
    nearly_fill(simulated)
    with ownership.turn() as note:
        assert not note(second)
    note_file = Path(f"{SIMULATED}{ASCEND.paths.owner_note}")
    assert not [name for name in names(note_file.parent) if name == note_file.name or name.startswith(".")]
    for owner in (first, second):
        with pytest.raises(OwnedElsewhere, match="taken over by another run"), ownership.owned(owner):
            pytest.fail("nobody is noted, so nobody may go on")


def test_a_lock_file_is_made_private_and_a_link_in_its_place_not_followed(host: Path, files: HostFiles) -> None:
    for _ in range(2):
        os.close(files.open_lock("/run/fresh/lock"))
    assert (host / "run/fresh/lock").stat().st_mode & 0o777 == 0o600
    link(host / "run/fresh/link", "/etc/kept")
    with pytest.raises(OSError, match="symbolic links"):
        files.open_lock("/run/fresh/link")
    assert not (host / "etc/kept").exists()
    os.mkfifo(host / "run/fresh/fifo")
    os.close(files.open_lock("/run/fresh/fifo"))


def test_only_those_that_work_hold_the_lock_together_and_each_wait_has_an_end(files: HostFiles) -> None:
    def take(how: str, clock: FakeClock) -> Any:
        return getattr(WorkLock(files, LOCK), how)(clock, *([5.0] if how == "working" else []))

    before = names(Path("/proc/self/fd"))
    for first, second, waited_s in (
        ("working", "working", 0.0),
        ("working", "alone", host_files.MOMENT_S),
        ("alone", "working", 5.0),
        ("alone", "alone", host_files.MOMENT_S),
    ):
        clock, later = FakeClock(), FakeClock()
        with take(first, clock) as held, take(second, clock) as other:
            assert (held, other) == (True, not waited_s)
        assert sum(clock.slept) == pytest.approx(waited_s, abs=0.1)
        with contextlib.ExitStack() as released:
            released.enter_context(take(first, later))
            later.after(0.3, released.close)
            with take(second, later) as held:
                assert held
        assert 0.3 * bool(waited_s) <= sum(later.slept) < 0.4
    assert names(Path("/proc/self/fd")) == before


def test_a_killed_process_lets_go(files: HostFiles, host: Path) -> None:
    lock = WorkLock(files, LOCK)
    os.close(files.open_lock(LOCK))
    holds = 'exec 9< "$0"; flock --shared 9; echo held; exec sleep 60'
    with subprocess.Popen(["sh", "-c", holds, str(host / LOCK.lstrip("/"))], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with lock.alone(FakeClock()) as alone:
            assert not alone
        process.send_signal(signal.SIGKILL)
    with lock.alone(FakeClock()) as alone:
        assert alone


def test_the_host_adapter_holds_the_lock_of_its_profile_where_there_is_room(tmp_path: Path) -> None:
    roots = roots_of(tmp_path / "host")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/run").write_text("not a folder")
    roots.root.mkdir()
    with LinuxHost(roots, PROFILE, FakeClock()).at_work() as held:
        assert held
        with WorkLock(roots.files(), PROFILE.paths.work_lock).alone(FakeClock()) as alone:
            assert not alone
    begun = time.monotonic()
    with LinuxHost(roots_of(tmp_path / "full"), PROFILE, FakeClock()).at_work() as held:
        assert not held
    assert time.monotonic() - begun < patient(1.0)


def test_the_hosts_name_is_the_kernels_where_its_namespace_is_ours_and_else_that_of_the_file(tmp_path: Path) -> None:
    rows = (
        ("node-1", True, None, "node-1"),
        ("Node-1.Example.COM", True, "other\n", "node-1.example.com"),
        ("pod-abc", False, "Node-1\n", "node-1"),
        ("pod-abc", False, None, ""),
        ("pod-abc", False, "", ""),
        ("pod-abc", False, "# set by cloud-init\n\n  node-1  # static\n", "node-1"),
        ("localhost", True, "node-1\n", "node-1"),
        ("localhost.localdomain", True, "localhost\n", ""),
        ("", True, "node-1\n", "node-1"),
        (None, False, "node-1\n", "node-1"),
    )
    for number, (kernel, is_shared, text, name) in enumerate(rows):
        root = tmp_path / str(number)
        for folder in ("proc/sys/kernel", "proc/1/ns", "proc/self/ns", "etc"):
            (root / folder).mkdir(parents=True)
        if kernel is not None:
            (root / "proc/sys/kernel/hostname").write_text(f"{kernel}\n")
            (root / "proc/1/ns/uts").symlink_to("uts:[1]")
            (root / "proc/self/ns/uts").symlink_to("uts:[1]" if is_shared else "uts:[2]")
        if text is not None:
            (root / "etc/hostname").write_text(text)
        assert host_files.host_name(roots_of(root)) == name, (kernel, is_shared, text)


def test_in_a_namespace_of_its_own_a_process_does_not_take_that_ones_name_for_the_hosts(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hostname").write_text("the-host\n")
    code = (
        "import sys; from pathlib import Path; from driver_manager.adapters.host.files import HostRoots, host_name; "
        "print(host_name(HostRoots(Path(sys.argv[1]), Path('/proc'), Path('/sys'), Path('/dev'))))"
    )
    shared = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert shared.stdout.strip() in (socket.gethostname().lower(), "the-host"), "the latter where pid 1 has its own"
    assert apart("echo other > /proc/sys/kernel/hostname", code, tmp_path) == "the-host\n"


NOEXEC = """
import sys
from pathlib import Path
from driver_manager.adapters.host.files import HostFiles
files = HostFiles(Path(sys.argv[1]), Path("/proc"))
print([files.noexec_mount(path) for path in sys.argv[2:]])
"""


def test_a_mount_on_which_nothing_can_be_executed_is_named(host: Path) -> None:
    """As Debian and Ubuntu mount /run."""
    (host / "run/rbln").mkdir(parents=True, exist_ok=True)
    (host / "opt/driver").mkdir(parents=True)
    (host / "link").symlink_to("/run/rbln")
    script = "mount -t tmpfs -o noexec tmpfs run; mkdir -p run/rbln/driver run/x; mount -t tmpfs tmpfs run/x"
    paths = ("/run/rbln/driver", "/run/rbln/driver.next", "/run", "/link/driver", "/run/x/driver", "/opt/driver", "/")
    assert apart(script, NOEXEC, host, *paths).strip() == str(["/run", "/run", "/run", "/run", "", "", ""])
