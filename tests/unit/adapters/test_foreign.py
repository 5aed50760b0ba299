"""A driver root is another distribution's root: its tool is run by the loader and with the libraries found in there."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.adapters.host.probe import Interpreted, foreign_command, interpreted, probe_command
from driver_manager.domain.health.parsers import PARSERS, parse
from driver_manager.domain.host import TIMED_OUT, Health
from driver_manager.domain.profile import Probe
from driver_manager.profiles import builtin
from tests.support.fakes.host_folders import Tree as Folders

LOADERS = {
    "x86-64": "/lib64/ld-linux-x86-64.so.2",
    "aarch64": "/lib/ld-linux-aarch64.so.1",
    "musl": "/lib/ld-musl-x86_64.so.1",
    "nix": "/nix/store/abc-glibc-2.39/lib/ld-linux-x86-64.so.2",
}
TOOL = "usr/bin/rbln-smi"
ROOT = "/run/rbln/driver"
AS_IT_IS = [f"D:/{TOOL}", "-j"]


def elf(loader: str = "", *, more: int = 2) -> bytes:
    """An ELF program with `more` program headers and one that names `loader`; nothing of it could be run."""
    count = more + bool(loader)
    table_end = 64 + 56 * count
    headers = [struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 0, 0, 4096)] * more
    if loader:
        headers.insert(1, struct.pack("<IIQQQQQQ", 3, 4, table_end, 0, 0, len(loader) + 1, len(loader) + 1, 1))
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, count, 64, 0, 0)
    return head + b"".join(headers) + loader.encode() + b"\0"


class Tree(Folders):
    """A host with a driver root."""

    def __init__(self, host: Path) -> None:
        super().__init__(host)
        self.driver = host / ROOT[1:]
        self.driver.mkdir(parents=True)

    def add(self, path: str, content: bytes = b"", *, on_host: bool = False) -> None:
        self.put(path if on_host else f"{ROOT}/{path}", content).chmod(0o755)

    def words(self) -> list[str]:
        """The probe's command, with the host's root as `H:` and the driver's as `D:`."""
        wanted = Probe("rbln-smi", ("-j",), library_dirs=("usr/lib/vendor",))
        found = probe_command(self.roots.files(), wanted, ROOT)
        assert found is not None
        return [word.replace(str(self.driver), "D:").replace(str(self.root), "H:") for word in found.argv]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "host")


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_a_tool_is_run_by_the_loader_in_its_root_with_the_libraries_there(tree: Tree, loader: str) -> None:
    tree.add(TOOL, elf(loader))
    tree.add(loader)
    (tree.driver / "usr/lib64").mkdir(parents=True)
    words = tree.words()
    folder = loader.rpartition("/")[0]
    assert words[:3] == [f"D:{loader}", "--inhibit-cache", "--library-path"]
    assert words[3].split(":D:")[0].removeprefix("D:") == "/usr/lib/vendor"
    assert {f"D:{folder}", "D:/usr/lib64"} <= {f"D:{part.removeprefix('D:')}" for part in words[3].split(":D:")}
    assert words[4:] == [f"D:/{TOOL}", "-j"]


def test_an_absolute_link_inside_the_root_stays_inside(tree: Tree) -> None:
    tree.add("usr/bin/real", elf(LOADERS["x86-64"]))
    (tree.driver / TOOL).symlink_to("/usr/bin/real")
    tree.add("usr/lib/ld-2.31.so")
    (tree.driver / "lib64").symlink_to("/usr/lib")
    (tree.driver / "usr/lib/ld-linux-x86-64.so.2").symlink_to("/usr/lib/ld-2.31.so")
    tree.add("usr/bin/real", b"the host's", on_host=True)
    words = tree.words()
    assert (words[0], words[4]) == ("D:/usr/lib/ld-2.31.so", "D:/usr/bin/real")


def test_a_driver_that_was_installed_on_the_host_runs_by_the_hosts_loader_or_as_it_is_without_one(tree: Tree) -> None:
    tree.add(TOOL, elf(LOADERS["x86-64"]))
    assert tree.words() == AS_IT_IS
    tree.add(LOADERS["x86-64"], on_host=True)
    assert tree.words()[0] == f"H:{LOADERS['x86-64']}"


SCRIPTS = ("#!/bin/absent", "#!", "#!/usr/bin/env -S sh -e", "#!/usr/bin/env absent", "#!/bin/me")


def test_what_has_no_loader_or_interpreter_of_its_own_is_left_to_the_kernel(tree: Tree) -> None:
    tree.add(LOADERS["x86-64"])
    tree.add("bin/sh", elf(LOADERS["x86-64"]))
    tree.add("bin/me", b"#!/bin/me\n")
    for content in (
        *(elf(), elf("")[:40], b"\x7fELF\x01\x01", b"", b"MZ", elf("/absent/ld.so"), elf(LOADERS["x86-64"], more=200)),
        *(f"{line}\n".encode() for line in SCRIPTS),
    ):
        tree.add(TOOL, content)
        assert tree.words() == AS_IT_IS, content


def test_a_scripts_interpreter_is_looked_up_in_its_root_too(tree: Tree) -> None:
    tree.add("bin/sh", elf(LOADERS["x86-64"]))
    tree.add(LOADERS["x86-64"])
    for line, words in (("#!/bin/sh", ()), ("#! /bin/sh -e -u ", ("-e -u",)), ("#!/usr/bin/env sh", ())):
        tree.add(TOOL, f"{line}\nexit 0\n".encode())
        assert tree.words()[4:] == ["D:/bin/sh", *words, f"D:/{TOOL}", "-j"]
        assert tree.words()[0] == f"D:{LOADERS['x86-64']}"


def test_the_vendors_environment_names_files_of_the_root(tree: Tree) -> None:
    tree.add(TOOL, elf(LOADERS["x86-64"]))
    (tree.driver / "usr/lib").mkdir(parents=True)
    (tree.driver / "usr/lib64").symlink_to("/usr/lib")
    tree.add("usr/lib/librbln-ml.so")
    for name, env in (
        ("rebellions", {"LD_PRELOAD": "D:/usr/lib/librbln-ml.so"}),
        ("ascend", {"LD_LIBRARY_PATH": "D:/lib64/driver:D:/lib64/common"}),
    ):
        shipped = builtin()[name].probe
        assert shipped is not None
        folders = shipped.library_dirs if name == "ascend" else ("usr/lib64",)
        probe = replace(shipped, tool="rbln-smi", search=("usr/bin",), library_dirs=folders)
        found = probe_command(tree.roots.files(), probe, ROOT)
        assert found is not None
        assert {key: text.replace(str(tree.driver), "D:") for key, text in found.env.items()} == env


@given(st.binary(max_size=400), st.sampled_from([b"", b"#!", b"\x7fELF\x02\x01", elf("/lib/ld.so")[:40], elf("/l")]))
def test_no_head_breaks_the_reading(tmp_path_factory: pytest.TempPathFactory, tail: bytes, head: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "program"
    file.write_bytes(head + tail)
    assert isinstance(interpreted(file), Interpreted)
    assert foreign_command(file, (tmp_path_factory.getbasetemp(),))[-1] == str(file)


def test_a_fifo_or_a_folder_in_the_tools_place_stops_nothing_and_our_own_root_needs_no_loader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    own = Path(sys.executable).resolve()
    assert Path(interpreted(own).loader).exists(), "this interpreter's own head names one"
    assert interpreted(tmp_path / "fifo") == Interpreted() == interpreted(tmp_path) == interpreted(tmp_path / "absent")
    (tmp_path / "tool").write_bytes(elf(str(own)))
    assert foreign_command(tmp_path / "tool", (Path("/"),)) == (str(tmp_path / "tool"),)


# what the loader says is no word on the devices

ERRORS = {
    "newer symbol": (1, "rbln-smi: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by x)"),
    "library": (127, "x: error while loading shared libraries: libX.so: cannot open shared object file: No such file"),
    "private": (127, "x: symbol lookup error: libc.so.6: undefined symbol: _dl_x, version GLIBC_PRIVATE"),
    "inconsistent": (127, "Inconsistency detected by ld.so: dl-call-libc-early-init.c: 37: Assertion failed!"),
    "aborted": (-6, "FATAL: kernel too old"),
    "preload": (1, "ERROR: ld.so: object 'librbln-ml.so' from LD_PRELOAD cannot be preloaded: ignored.\nno library"),
    "musl": (127, "Error loading shared library libX.so: No such file or directory (needed by x)"),
    "musl symbol": (1, "Error relocating /usr/bin/x: __isoc23_strtol: symbol not found"),
    "machine": (126, "/run/rbln/driver/usr/bin/rbln-smi: Exec format error"),
    "interpreter": (127, "/run/rbln/driver/usr/bin/rbln-smi: not found"),
}


@pytest.mark.parametrize(("status", "err"), ERRORS.values(), ids=ERRORS)
def test_a_tool_that_its_loader_refuses_is_unknown(status: int, err: str) -> None:
    for name in PARSERS:
        found = parse(Probe("x", parser=name), status, "", err.splitlines()[-1], ("0000:01:00.0",), err=err)
        assert (found.health, found.is_tool_broken, bool(found.reason)) == (Health.UNKNOWN, True, True), name


@pytest.mark.parametrize("parser", PARSERS)
def test_a_tool_that_worked_or_hung_is_believed_whatever_the_loader_remarked(parser: str) -> None:
    warning = ERRORS["preload"][1]
    assert parse(Probe("x", parser=parser), TIMED_OUT, "", "no end", err=warning).health is Health.UNHEALTHY
    assert parse(Probe("x"), 0, "", "", err=warning).health is Health.HEALTHY
    assert parse(Probe("x"), 1, "", "ECC error", err="ECC error").health is Health.UNHEALTHY
