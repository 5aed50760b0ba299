"""Paths of the host stay inside the host's root, and files are replaced whole or not at all."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.adapters.host import files as host_files
from driver_manager.adapters.host.files import MAX_LINKS, MAX_READ_BYTES, HostFiles, OpenEntry, resolve
from driver_manager.domain.errors import ConfigError


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host root beside a secret that no path may reach."""
    (tmp_path / "secret").write_text("container")
    root = tmp_path / "host"
    (root / "run/rbln").mkdir(parents=True)
    (root / "etc").mkdir()
    return root


def link(at: Path, target: str) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(target)


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
def test_no_path_leads_out_of_the_host(host: Path, links: dict[str, str], path: str, inside: str) -> None:
    for at, target in links.items():
        link(host / at, target)
    assert resolve(host, path) == host / inside


@given(parts=st.lists(st.sampled_from(["..", "a", "up", "abs", "loop", "run", ".", ""]), max_size=8))
def test_no_mixture_of_dots_and_links_leads_out(parts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("host")
    link(root / "up", "../../..")
    link(root / "abs", "/..")
    link(root / "loop", "up/up")
    found = resolve(root, "/" + "/".join(parts))
    assert found.is_relative_to(root)
    assert ".." not in found.parts


def test_the_last_link_is_kept_where_it_is_to_be_replaced(host: Path) -> None:
    link(host / "var/run", "/run")
    link(host / "run/file", "/etc/other")
    assert resolve(host, "/var/run/file", follow_last=False) == host / "run/file"
    assert resolve(host, "/var/run/file") == host / "etc/other"


@pytest.mark.parametrize("targets", [{"loop": "loop"}, {"a": "/b", "b": "/a"}])
def test_a_loop_of_links_is_an_error_and_ends(host: Path, targets: dict[str, str]) -> None:
    for at, target in targets.items():
        link(host / at, target)
    with pytest.raises(OSError, match="symbolic links") as caught:
        resolve(host, f"/{next(iter(targets))}/x")
    assert caught.value.errno == errno.ELOOP


def test_as_many_links_as_the_kernel_follows_are_followed(host: Path) -> None:
    for number in range(MAX_LINKS):
        link(host / f"l{number}", f"l{number + 1}")
    assert resolve(host, "/l0") == host / f"l{MAX_LINKS}"
    link(host / "more", "l0")
    with pytest.raises(OSError, match="symbolic links"):
        resolve(host, "/more")


def test_the_real_path_is_named_as_the_hosts_mount_table_does(host: Path) -> None:
    link(host / "var/run", "/run")
    files = HostFiles(host, host / "proc")
    assert files.real("/var/run/rbln/driver") == "/run/rbln/driver"
    assert files.real("/") == "/"


# reading


def test_what_is_not_there_reads_as_none(host: Path) -> None:
    files = HostFiles(host, host / "proc")
    (host / "etc/file").write_text("x")
    assert files.read("/etc/absent") is None
    assert files.read("/etc/file/below") is None
    assert files.read("/etc/file") == "x"
    with pytest.raises(IsADirectoryError):
        files.read("/etc")


@pytest.mark.parametrize("writer", [False, True])
def test_a_fifo_in_a_files_place_does_not_hold_the_run(host: Path, writer: bool) -> None:
    fifo = host / "etc/fifo"
    os.mkfifo(fifo)
    other_end = os.open(fifo, os.O_RDWR) if writer else None
    try:
        with pytest.raises(OSError, match="not a regular file"):
            HostFiles(host, host / "proc").read("/etc/fifo")
    finally:
        if other_end is not None:
            os.close(other_end)


def test_a_device_and_a_socket_in_a_files_place_are_refused(host: Path) -> None:
    files = HostFiles(Path("/"), Path("/proc"))
    with pytest.raises(OSError, match="not a regular file"):
        files.read("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(host / "etc/socket"))
        with pytest.raises(OSError, match="No such device"):
            HostFiles(host, host / "proc").read("/etc/socket")


def test_a_file_that_can_be_written_has_no_problem_and_a_folder_in_its_place_has(host: Path) -> None:
    files = HostFiles(host, host / "proc")
    assert files.why_not_writable("/run/rbln/state") == ""
    assert files.why_not_writable("/run/absent/deep/state") == ""
    assert not (host / "run/absent").exists()
    (host / "run/rbln/state").mkdir()
    assert files.why_not_writable("/run/rbln/state") == "/run/rbln/state is a folder"


def test_a_full_file_system_is_told_with_its_room(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_files, "MIN_FREE_BYTES", 2**80)
    assert "bytes left" in HostFiles(host, host / "proc").why_not_writable("/run/rbln/state")


def test_only_the_first_part_of_a_large_or_binary_file_is_read(host: Path) -> None:
    (host / "etc/file").write_bytes(b"\xff" * (MAX_READ_BYTES + 10))
    text = HostFiles(host, host / "proc").read("/etc/file")
    assert text == "\ufffd" * MAX_READ_BYTES


def test_a_dangling_link_exists_and_reads_as_none(host: Path) -> None:
    files = HostFiles(host, host / "proc")
    link(host / "etc/dangling", "/nowhere")
    assert files.exists("/etc/dangling")
    assert not files.exists("/etc/absent")
    assert files.read("/etc/dangling") is None


# writing


def test_a_file_is_written_with_its_folders_and_mode(host: Path) -> None:
    HostFiles(host, host / "proc").write("/run/new/deep/file", "text\n")
    file = host / "run/new/deep/file"
    assert file.read_text() == "text\n"
    assert file.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in file.parent.iterdir()] == ["file"], "no temporary file is left"


def test_a_link_in_the_files_place_is_replaced_not_followed(host: Path) -> None:
    link(host / "run/rbln/state", "../../../secret")
    link(host / "run/rbln/other", "/etc/passwd")
    (host / "etc/passwd").write_text("root")
    files = HostFiles(host, host / "proc")
    for name in ("state", "other"):
        files.write(f"/run/rbln/{name}", "ours")
        assert not (host / "run/rbln" / name).is_symlink()
        assert (host / "run/rbln" / name).read_text() == "ours"
    assert (host.parent / "secret").read_text() == "container"
    assert (host / "etc/passwd").read_text() == "root"


def test_a_failed_write_leaves_the_old_file_and_no_other(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (host / "run/rbln/state").write_text("old")

    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(ConfigError, match="No space left") as caught:
        HostFiles(host, host / "proc").write("/run/rbln/state", "new")
    assert "/run/rbln" in caught.value.remedy
    assert (host / "run/rbln/state").read_text() == "old"
    assert [entry.name for entry in (host / "run/rbln").iterdir()] == ["state"]


def test_removing_what_is_not_there_is_fine_and_a_link_is_not_followed(host: Path) -> None:
    files = HostFiles(host, host / "proc")
    files.remove("/run/rbln/absent")
    link(host / "run/rbln/link", "/etc/kept")
    (host / "etc/kept").write_text("x")
    files.remove("/run/rbln/link")
    assert not files.exists("/run/rbln/link")
    assert (host / "etc/kept").exists()


# read-only views


def read_only(monkeypatch: pytest.MonkeyPatch, folders: Iterable[Path], number: int = errno.EROFS) -> list[Path]:
    """Make writes below `folders` fail; the list of all targets that were tried."""
    tried: list[Path] = []
    real = host_files.replace_in

    def replace(where: OpenEntry, text: str, mode: int) -> None:
        tried.append(where.path)
        if any(where.path.is_relative_to(folder) for folder in folders):
            raise OSError(number, os.strerror(number))
        real(where, text, mode)

    monkeypatch.setattr(host_files, "replace_in", replace)
    return tried


def view_of_pid_1(host: Path, folder: str = "run/rbln") -> Path:
    """What /proc/1/root shows: here a tree of its own."""
    view = host / "proc/1/root"
    (view / folder).mkdir(parents=True)
    return view


def test_a_folder_mounted_at_its_own_path_is_written_before_the_hosts_root(
    host: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "mounted"
    own.mkdir()
    (host / str(own).lstrip("/")).mkdir(parents=True)
    tried = read_only(monkeypatch, [])
    monkeypatch.setattr(os.path, "samestat", lambda *_: True)
    HostFiles(host, host / "proc").write(f"{own}/state", "x")
    assert tried == [own / "state"]


def test_a_folder_that_is_yet_to_be_made_in_a_mounted_one_is_made_there(
    host: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "mounted"
    own.mkdir()
    on_host = host / str(own).lstrip("/")
    on_host.mkdir(parents=True)
    same = {own.stat().st_ino, on_host.stat().st_ino}
    monkeypatch.setattr(os.path, "samestat", lambda one, other: {one.st_ino, other.st_ino} == same)
    tried = read_only(monkeypatch, [host])
    files = HostFiles(host, host / "proc")
    files.write(f"{own}/evidence/of/1.txt", "x")
    assert tried == [own / "evidence/of/1.txt"]
    with pytest.raises(ConfigError, match="Read-only file system"):
        files.write("/run/not-mounted/1.txt", "x")


def test_pid_1s_root_is_the_last_resort_for_a_read_only_root(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of_pid_1(host)
    tried = read_only(monkeypatch, [host / "run"])
    HostFiles(host, host / "proc").write("/run/rbln/state", "x")
    assert tried == [host / "run/rbln/state", view / "run/rbln/state"]
    assert (view / "run/rbln/state").read_text() == "x"


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC])
def test_only_a_read_only_file_system_leads_to_the_next_view(
    host: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    view_of_pid_1(host)
    tried = read_only(monkeypatch, [host / "run"], number)
    with pytest.raises(ConfigError):
        HostFiles(host, host / "proc").write("/run/rbln/state", "x")
    assert len(tried) == 1


def test_without_a_writable_view_the_remedy_names_the_folder(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_only(monkeypatch, [host])
    with pytest.raises(ConfigError, match="Read-only file system") as caught:
        HostFiles(host, host / "proc").write("/run/rbln/state", "x")
    assert caught.value.remedy == "Mount /run/rbln of the host read-write at the same path."


def test_a_folder_that_a_fresh_boot_does_not_have_is_made_in_pid_1s_root(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = view_of_pid_1(host, "run")
    read_only(monkeypatch, [host / "run"])
    HostFiles(host, host / "proc").write("/run/fresh/state", "x")
    assert (view / "run/fresh/state").read_text() == "x"


def test_a_link_in_pid_1s_root_stays_inside_it(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of_pid_1(host)
    link(view / "var/run", "/run")
    link(host / "var/run", "/run")
    read_only(monkeypatch, [host / "run"])
    HostFiles(host, host / "proc").write("/var/run/rbln/state", "x")
    assert (view / "run/rbln/state").read_text() == "x"


# made only where nothing is, put aside and back


def test_a_file_is_made_whole_or_not_at_all_where_something_is(host: Path) -> None:
    files = HostFiles(host, host / "proc")
    assert files.create("/run/new/marker", "ours\n")
    assert not files.create("/run/new/marker", "again\n")
    assert (host / "run/new/marker").read_text() == "ours\n"
    assert [entry.name for entry in (host / "run/new").iterdir()] == ["marker"]
    link(host / "run/new/dangling", "/nowhere")
    assert not files.create("/run/new/dangling", "x")


def test_a_file_that_cannot_be_made_names_the_folder(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(host_files, "_create", read_only)
    with pytest.raises(ConfigError, match="Read-only file system") as caught:
        HostFiles(host, host / "proc").create("/run/rbln/marker", "x")
    assert "/run/rbln" in caught.value.remedy


def test_what_is_put_aside_comes_back_as_it_was(host: Path) -> None:
    files = HostFiles(host, host / "proc")
    ready = host / "run/rbln/.ready"
    ready.write_text("DRIVER=1\n")
    ready.chmod(0o640)
    before = ready.stat()
    files.put_aside("/run/rbln/.ready", ".ready.withdrawn")
    assert sorted(entry.name for entry in (host / "run/rbln").iterdir()) == [".ready.withdrawn"]
    files.put_back("/run/rbln/.ready", ".ready.withdrawn")
    assert sorted(entry.name for entry in (host / "run/rbln").iterdir()) == [".ready"]
    after = ready.stat()
    assert (after.st_ino, after.st_mode, after.st_mtime) == (before.st_ino, before.st_mode, before.st_mtime)


def test_what_was_made_meanwhile_stays_and_what_was_put_aside_goes(host: Path) -> None:
    files = HostFiles(host, host / "proc")
    (host / "run/rbln/.ready").write_text("new")
    (host / "run/rbln/.ready.withdrawn").write_text("old")
    files.put_back("/run/rbln/.ready", ".ready.withdrawn")
    assert (host / "run/rbln/.ready").read_text() == "new"
    assert not (host / "run/rbln/.ready.withdrawn").exists()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_links_is_served_too(host: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_links)
    files = HostFiles(host, host / "proc")
    assert files.create("/run/new/marker", "ours\n")
    assert not files.create("/run/new/marker", "again\n")
    files.put_aside("/run/new/marker", "aside")
    files.put_back("/run/new/marker", "aside")
    assert [(entry.name, entry.read_text()) for entry in (host / "run/new").iterdir()] == [("marker", "ours\n")]
    files.put_aside("/run/new/marker", "aside")
    files.create("/run/new/marker", "new\n")
    files.put_back("/run/new/marker", "aside")
    assert [(entry.name, entry.read_text()) for entry in (host / "run/new").iterdir()] == [("marker", "new\n")]


def test_a_lock_file_is_made_private_and_a_link_in_its_place_not_followed(host: Path) -> None:
    files = HostFiles(host, host / "proc")
    os.close(files.open_lock("/run/fresh/lock"))
    os.close(files.open_lock("/run/fresh/lock"))
    assert (host / "run/fresh/lock").stat().st_mode & 0o777 == 0o600
    link(host / "run/fresh/link", "/etc/kept")
    with pytest.raises(OSError, match="symbolic links"):
        files.open_lock("/run/fresh/link")
    assert not (host / "etc/kept").exists()
    os.mkfifo(host / "run/fresh/fifo")
    os.close(files.open_lock("/run/fresh/fifo"))
