"""Options that an administrator set for a module, in modprobe.d or by hand, are found: garbage is no option."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.adapters.host import modules as kmod
from driver_manager.adapters.host.files import HostFiles
from driver_manager.adapters.host.modules import as_config, configured_options, loaded_parameters, options_in
from driver_manager.adapters.process.tools import Result
from tests.support.fakes.deadlines import soon
from tests.support.fakes.host_folders import KERNEL, load


def options(root: Path) -> dict[str, str]:
    return configured_options(HostFiles(root, root / "proc"))


def put(root: Path, path: str, text: str | bytes) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("options rebellions depth=7\n", {"rebellions": "depth=7"}),
        ('options rebellions depth=7 name="a b"  trace\n', {"rebellions": 'depth=7 name="a b"  trace'}),
        ("options nvidia-drm modeset=1\n", {"nvidia_drm": "modeset=1"}),
        ("  options\trebellions\tdepth=7\n", {"rebellions": "depth=7"}),
        ("options rebellions depth=7\noptions rebellions trace=1\n", {"rebellions": "depth=7 trace=1"}),
        ("options rebellions \\\n depth=7 \\\n trace=1\n", {"rebellions": "depth=7   trace=1"}),
        ("# options rebellions depth=7\n", {}),
        ("blacklist rebellions\ninstall rebellions /bin/false\nalias x rebellions\n", {}),
        ("options rebellions\noptions\n\n", {}),
        (b"options rebellions depth=\xff\n", {"rebellions": "depth=\ufffd"}),
        ("", {}),
    ],
)
def test_option_lines_are_read_as_modprobe_reads_them(tmp_path: Path, text: str | bytes, found: dict[str, str]) -> None:
    put(tmp_path, "etc/modprobe.d/a.conf", text)
    put(tmp_path, "etc/modprobe.d/README", "options rebellions depth=9\n")
    assert options(tmp_path) == found


def test_files_count_by_name_and_the_administrators_folder_hides_the_distributions(tmp_path: Path) -> None:
    put(tmp_path, "lib/modprobe.d/z.conf", "options rebellions last=1\n")
    put(tmp_path, "lib/modprobe.d/b.conf", "options rebellions hidden=1\n")
    put(tmp_path, "run/modprobe.d/b.conf", "options rebellions hidden=2\n")
    put(tmp_path, "etc/modprobe.d/b.conf", "options rebellions second=1\n")
    put(tmp_path, "usr/lib/modprobe.d/a.conf", "options rebellions first=1\n")
    assert options(tmp_path) == {"rebellions": "first=1 second=1 last=1"}


def test_a_link_is_followed_inside_the_host_and_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, "etc/alternatives/nvidia.conf", "options nvidia a=1\n")
    folder = tmp_path / "etc/modprobe.d"
    folder.mkdir()
    (folder / "nvidia.conf").symlink_to("/etc/alternatives/nvidia.conf")
    (folder / "gone.conf").symlink_to("/etc/alternatives/gone.conf")
    (folder / "loop.conf").symlink_to("loop.conf")
    (folder / "folder.conf").mkdir()
    os.mkfifo(folder / "fifo.conf")
    assert options(tmp_path) == {"nvidia": "a=1"}


def test_a_host_without_any_has_none(tmp_path: Path) -> None:
    assert options(tmp_path) == {}


WORDS = ["options", "rebellions", "nvidia-drm", "a=1", "b='c d'", "#", "\\", "\n", " ", "\t", "install"]


@given(st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join) | st.text(max_size=200))
def test_what_is_handed_to_modprobe_is_read_the_same_again(text: str) -> None:
    found = options_in(text)
    assert options_in(as_config(found).decode()) == found


# how modprobe gets them


def test_modprobe_gets_them_before_those_of_its_own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "lib/modules" / KERNEL
    tree.mkdir(parents=True)
    (tree / "modules.dep").touch()
    seen: list[tuple[list[str], str]] = []

    def run(argv: Sequence[str], *, pass_fds: Sequence[int], **_: Any) -> Result:
        (config,) = pass_fds
        assert f"/proc/self/fd/{config}" in argv
        seen.append((list(argv), Path(f"/proc/self/fd/{config}").read_text()))
        return Result(0, "", "")

    monkeypatch.setattr(kmod, "FOLDERS", (str(tmp_path), str(tmp_path / "absent")))
    monkeypatch.setattr(kmod, "run", run)
    kmod.load_module(tmp_path, KERNEL, "rebellions", soon(), {"rebellions": "depth=7", "core": "a=1"})
    ((argv, config),) = seen
    assert config == "options rebellions depth=7\noptions core a=1\n"
    assert argv[-4:] == ["--config", str(tmp_path), "--", "rebellions"]
    assert argv.count("--config") == 2


def test_modprobe_itself_reads_what_it_is_given_so(tmp_path: Path) -> None:
    config = os.memfd_create("test")
    try:
        os.write(config, as_config({"rebellions": 'depth=7 name="a b"'}))
        argv = ["modprobe", "--config", f"/proc/self/fd/{config}", "--showconfig"]
        said = subprocess.run(argv, pass_fds=(config,), capture_output=True, text=True, timeout=60, check=True)
    except FileNotFoundError:
        pytest.skip("this machine has no modprobe")
    finally:
        os.close(config)
    assert 'options rebellions depth=7 name="a b"' in said.stdout.splitlines()


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (Result(0, "insmod /r/core.ko \ninsmod /r/rebellions.ko depth=7\n", ""), ""),
        (Result(0, "builtin core\n", ""), ""),
        (Result(0, "insmod /r/core.ko\ninstall /bin/false\n", ""), "would run `/bin/false` instead"),
        (Result(1, "", "modprobe: FATAL: Module rebellions not found in directory /r"), "rebellions not found"),
        (Result(127, "", "modprobe: not found"), "modprobe: not found"),
    ],
)
def test_what_modprobe_would_refuse_is_told_before(monkeypatch: pytest.MonkeyPatch, result: Result, said: str) -> None:
    ran: list[list[str]] = []

    def run(argv: Sequence[str], **_: Any) -> Result:
        ran.append(list(argv))
        return result

    monkeypatch.setattr(kmod, "run", run)
    why = kmod.why_load_refused(Path("/r"), KERNEL, "rebellions")
    assert bool(why) is bool(said)
    assert said in why
    assert ran == [["modprobe", "--show-depends", "--dirname", "/r", "--set-version", KERNEL, "--", "rebellions"]]


# of loaded modules


def test_parameters_of_loaded_modules_are_read_one_line_each(tmp_path: Path) -> None:
    for name in ("rebellions", "rebellions_core", "other"):
        load(tmp_path, name)
    put(tmp_path, "module/rebellions/parameters/depth", "7\n")
    put(tmp_path, "module/rebellions/parameters/name", "a = b\n")
    put(tmp_path, "module/rebellions/parameters/lines", "a\nb\n")
    put(tmp_path, "module/rebellions/parameters/empty", "")
    put(tmp_path, "module/rebellions/parameters/long", "x" * 10_000)
    put(tmp_path, "module/other/parameters/depth", "7\n")
    (tmp_path / "module/rebellions/parameters/folder").mkdir()
    found = loaded_parameters(tmp_path, ("rebellions", "rebellions_core", "gone"))
    long = found.pop("rebellions.long")
    assert found == {"rebellions.depth": "7", "rebellions.name": "a = b", "rebellions.empty": ""}
    assert long == "x" * 256


def test_a_parameter_that_never_answers_holds_nobody(tmp_path: Path) -> None:
    load(tmp_path, "rebellions")
    put(tmp_path, "module/rebellions/parameters/depth", "7\n")
    os.mkfifo(tmp_path / "module/rebellions/parameters/hangs")
    assert loaded_parameters(tmp_path, ("rebellions",), 0.3) == {}
