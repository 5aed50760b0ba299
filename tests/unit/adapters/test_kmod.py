"""What /sys says is loaded, what a driver tree offers, and what the tools' answers mean."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from sys import executable
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.adapters.host import modules as kmod
from driver_manager.adapters.host.modules import ModuleTrees
from driver_manager.adapters.process.run import TOOL_TIMEOUT_S
from driver_manager.adapters.process.tools import Result
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ModuleBusy, ModuleFailed, ModuleStuck, Terminated
from driver_manager.domain.host import MissingFirmware, Module
from tests.support.control_plane.container import unshare
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.deadlines import soon
from tests.support.fakes.elf_files import GLOBAL, MAGIC, MODULE, SECTION_BYTES, elf
from tests.support.fakes.host_folders import KERNEL, Tree, load


@pytest.fixture
def sys(tree: Tree) -> Path:
    return tree.roots.sys


Patch = pytest.MonkeyPatch
Answer = Callable[[Sequence[str]], Result]
Tools = Callable[[Result | Answer], list[list[str]]]


@pytest.fixture
def tools(monkeypatch: Patch) -> Tools:
    """Let an answer speak for rmmod, modprobe and modinfo; the argument lists that were run."""

    def use(answer: Result | Answer) -> list[list[str]]:
        ran: list[list[str]] = []

        def run(argv: Sequence[str], **_: Any) -> Result:
            ran.append(list(argv))
            return answer if isinstance(answer, Result) else answer(argv)

        monkeypatch.setattr(kmod, "run", run)
        return ran

    return use


def modinfo(out: str) -> Answer:
    """What modinfo prints; the other tools succeed."""
    return lambda argv: Result(0, out if argv[0] == "modinfo" else "", "")


def test_the_drivers_modules_are_read_with_version_count_and_holders_and_those_that_leave_are_named(sys: Path) -> None:
    load(sys, "rebellions_core", "rebellions", version="1.0\n", initstate="coming\n")
    load(sys, "rebellions", "third_party", version="1.0\n", refcnt="3\n")
    load(sys, "third_party")
    load(sys, "ext4")
    load(sys, "rebellions_peer", initstate="going\n")
    (sys / "module/rebellions_built_in/parameters").mkdir(parents=True)
    assert kmod.driver_modules(sys, PROFILE.modules) == {
        "rebellions": Module("rebellions", "1.0", 3, ("third_party",)),
        "rebellions_core": Module("rebellions_core", "1.0", 1, ("rebellions",), is_coming=True),
        "third_party": Module("third_party", "", 0),
    }
    assert kmod.loaded_among(sys, ("ext4", "rebellions_built_in", "absent")) == ("ext4",)
    for text, count in {"7\n": 7, "-1\n": None, "²\n": None, "garbage": None, "": None}.items():
        (sys / "module/rebellions/refcnt").write_text(text)
        assert kmod.driver_modules(sys, PROFILE.modules)["rebellions"].refcount == count
    for name in ("third_party", "rebellions_core", "ext4"):
        (sys / "module" / name / "initstate").write_text("going\n")
    # A foreign module counts where it uses the driver: as long as it is there, the driver is in use.
    assert kmod.leaving_modules(sys, PROFILE.modules) == ("rebellions_core", "rebellions_peer", "third_party")
    assert set(kmod.driver_modules(sys, PROFILE.modules)) == {"rebellions"}


def test_a_module_that_cannot_be_unloaded_is_known_by_its_line(tmp_path: Path) -> None:
    assert kmod.permanent_modules(tmp_path, ["rebellions"]) == {}, "there is no list"
    for line, why in {
        "rebellions 16384 0 - Live 0xffffffffc0a00000 (OE)": "",
        "rebellions 16384 1 rebellions_peer, Live 0xffffffffc0a00000": "",
        "rebellions 16384 0 [permanent], Live 0x0000000000000000": "no exit function",
        "rebellions 16384 1 rebellions_peer,[permanent], Live 0x0000000000000000": "no exit function",
        "rebellions 16384 - - Live 0xffffffffc0a00000 (O)": "CONFIG_MODULE_UNLOAD",
        "rebellions 16384": "",
        "rebellions_other 16384 0 [permanent], Live 0x0": "",
        "other 16384 0 [permanent], Live 0x0": "",
        "": "",
    }.items():
        (tmp_path / "modules").write_text(f"ext4 999 1 - Live 0x0\n{line}\n")
        found = kmod.permanent_modules(tmp_path, ["rebellions", "rebellions_core"])
        assert set(found) == ({"rebellions"} if why else set()), line
        assert why in found.get("rebellions", ""), line


def test_parameters_of_loaded_modules_are_read_one_line_each(tree: Tree, sys: Path) -> None:
    for name in ("rebellions", "rebellions_core", "other"):
        load(sys, name)
    texts = {"depth": "7\n", "name": "a = b\n", "lines": "a\nb\n", "empty": "", "long": "x" * 10_000}
    for name, text in texts.items():
        tree.put(f"/sys/module/rebellions/parameters/{name}", text)
    tree.put("/sys/module/other/parameters/depth", "7\n")
    (sys / "module/rebellions/parameters/folder").mkdir()
    found = {"depth": "7", "name": "a = b", "empty": "", "long": "x" * 256}
    names = ("rebellions", "rebellions_core", "gone")
    assert kmod.loaded_parameters(sys, names) == {f"rebellions.{name}": text for name, text in found.items()}
    os.mkfifo(sys / "module/rebellions/parameters/hangs")
    assert kmod.loaded_parameters(sys, names, 0.3) == {}, "one that never answers delays no other"


@pytest.mark.parametrize(("left_s", "given_s"), [(600.0, TOOL_TIMEOUT_S), (5.0, 5.0), (0.0, 0.0)])
def test_a_tool_gets_no_more_time_than_is_left(sys: Path, monkeypatch: Patch, left_s: float, given_s: float) -> None:
    given: list[float] = []

    def run(_: Sequence[str], *, timeout_s: float) -> Result:
        given.append(timeout_s)
        return Result(0, "", "")

    monkeypatch.setattr(kmod, "run", run)
    clock = FakeClock()
    deadline = Deadline.after(left_s, clock.monotonic)
    kmod.unload_module(sys, "rebellions", deadline, clock)
    kmod.load_module(sys, KERNEL, "rebellions", deadline)
    kmod.load_modules(sys, [("rebellions", sys)], deadline)
    assert given == [given_s] * 4, "rmmod, depmod, modprobe, insmod"


def test_a_module_that_stays_is_busy_in_every_wording_or_a_failure_with_the_last_line(sys: Path, tools: Tools) -> None:
    load(sys, "rebellions")
    for users, status, err, error in (
        (0, 1, "rmmod: ERROR: Module rebellions is in use", ModuleBusy),
        (0, 1, "rmmod: ERROR: Module rebellions is in use by: rebellions_peer", ModuleBusy),
        (0, 1, "rmmod: ERROR: could not remove 'rebellions': Resource temporarily unavailable", ModuleBusy),
        (0, 1, "rmmod: can't unload module 'rebellions': Device or resource busy", ModuleBusy),
        (2, 124, "rmmod: timed out after 60 s", ModuleBusy),
        (0, 1, "rmmod: ERROR: could not remove 'rebellions': Operation not permitted", ModuleFailed),
        (0, 124, "rmmod: timed out after 60 s", ModuleFailed),
        (0, 127, "rmmod: not found", ModuleFailed),
        (0, -9, "", ModuleFailed),
        (0, 0, "", ModuleFailed),
    ):
        (sys / "module/rebellions/refcnt").write_text(f"{users}\n")
        result = Result(status, "", err)
        tools(result)
        with pytest.raises(error) as caught:
            kmod.unload_module(sys, "rebellions", soon(), FakeClock())
        why = "is in use" if error is ModuleBusy else result.last_line if status else "is still loaded"
        assert (type(caught.value), why in caught.value.what) == (error, True)
    shutil.rmtree(sys / "module/rebellions")
    ran = tools(Result(1, "", "rmmod: ERROR: Module rebellions is not currently loaded"))
    kmod.unload_module(sys, "rebellions", soon(), FakeClock())
    assert ran == [["rmmod", "--", "rebellions"]], "whatever the tool says of one that is gone"


HUNG = (Result(124, "", "rmmod: timed out after 60 s"), Result(1, "", "rmmod: ERROR: Device or resource busy"))


@pytest.mark.parametrize("result", [*HUNG, Result(0, "", "")])
def test_a_module_whose_exit_does_not_return_is_stuck_and_not_gone(sys: Path, tools: Tools, result: Result) -> None:
    load(sys, "rebellions", initstate="going\n", refcnt="0\n")
    tools(result)
    clock = FakeClock()
    with pytest.raises(ModuleStuck, match="rebellions is stuck while unloading") as caught:
        kmod.unload_module(sys, "rebellions", Deadline.after(90.0, clock.monotonic), clock)
    assert "Reboot the node" in caught.value.remedy
    assert clock.now >= 1_090.0, "it had all the time there was"


@pytest.mark.parametrize("result", HUNG)
def test_an_exit_that_returns_late_is_an_unload_unless_the_run_ends(sys: Path, tools: Tools, result: Result) -> None:
    load(sys, "rebellions", initstate="going\n")
    tools(result)
    clock = FakeClock()
    clock.after(3.0, clock.ask_to_end)
    with pytest.raises(Terminated):
        kmod.unload_module(sys, "rebellions", Deadline.after(90.0, clock.monotonic), clock)
    assert clock.now < 1_004.0
    clock = FakeClock()
    clock.after(80.0, (sys / "module/rebellions/initstate").unlink)
    kmod.unload_module(sys, "rebellions", Deadline.after(90.0, clock.monotonic), clock)


@pytest.fixture
def root(tree: Tree) -> Path:
    """A driver root with its list of modules."""
    tree.put(f"/new/lib/modules/{KERNEL}/modules.dep", "")
    return tree.root / "new"


def test_modprobe_gets_root_kernel_and_name_and_a_tree_without_a_list_gets_one_first(root: Path, tools: Tools) -> None:
    ran = tools(Result(0, "", ""))
    kmod.load_module(root, KERNEL, "rebellions", soon())
    assert ran == [["modprobe", "--dirname", str(root), "--set-version", KERNEL, "--", "rebellions"]]
    tools(Result(1, "", "modprobe: ERROR: could not insert 'rebellions': Exec format error"))
    with pytest.raises(ModuleFailed, match=r"/new: .*Exec format error"):
        kmod.load_module(root, KERNEL, "rebellions", soon())
    (root / "lib/modules" / KERNEL / "modules.dep").unlink()
    ran = tools(lambda argv: Result(int(argv[0] == "depmod"), "", "depmod: read-only"))
    with pytest.raises(ModuleFailed, match="depmod cannot make it: depmod: read-only"):
        kmod.load_module(root, KERNEL, "rebellions", soon())
    assert ran == [["depmod", "-b", str(root), "--", KERNEL]]


def test_no_name_that_begins_with_a_dash_is_an_option_of_a_tool(sys: Path, root: Path, tools: Tools) -> None:
    ran = tools(Result(1, "", "no"))
    load(sys, "-a")
    calls: tuple[Callable[[], object], ...] = (
        lambda: kmod.unload_module(sys, "-a", soon(), FakeClock()),
        lambda: kmod.load_module(root, KERNEL, "-a", soon()),
        lambda: kmod.load_module(root, KERNEL, "-a", soon(), {"a": "b=1"}),
        lambda: kmod.make_module_list(root / "absent", "-a", soon()),
    )
    for call in calls:
        with pytest.raises(ModuleFailed):
            call()
    kmod.why_load_refused(root, KERNEL, "-a")
    kmod.load_modules(sys, [("x", Path("-a"))], soon())
    assert {argv[0] for argv in ran} == {"rmmod", "modprobe", "depmod", "insmod"}
    assert [argv for argv in ran if argv.index("--") != argv.index("-a") - 1] == []


def test_what_modprobe_would_refuse_is_known_before(tools: Tools) -> None:
    for result, why in (
        (Result(0, "insmod /r/core.ko \ninsmod /r/rebellions.ko depth=7\n", ""), ""),
        (Result(0, "builtin core\n", ""), ""),
        (Result(0, "insmod /r/core.ko\ninstall /bin/false\n", ""), "would run `/bin/false` instead"),
        (Result(1, "", "modprobe: FATAL: Module rebellions not found in directory /r"), "rebellions not found"),
        (Result(127, "", "modprobe: not found"), "modprobe: not found"),
    ):
        ran = tools(result)
        found = kmod.why_load_refused(Path("/r"), KERNEL, "rebellions")
        assert (bool(found), why in found) == (bool(why), True)
        assert ran == [["modprobe", "--show-depends", "--dirname", "/r", "--set-version", KERNEL, "--", "rebellions"]]


def options(tree: Tree) -> dict[str, str]:
    return kmod.configured_options(tree.roots.files())


def test_option_lines_are_read_as_modprobe_reads_them(tree: Tree) -> None:
    tree.put("/etc/modprobe.d/README", "options rebellions depth=9\n")
    assert options(tree) == {}
    texts: dict[str | bytes, dict[str, str]] = {
        "options rebellions depth=7\n": {"rebellions": "depth=7"},
        'options rebellions depth=7 name="a b"  trace\n': {"rebellions": 'depth=7 name="a b"  trace'},
        "options nvidia-drm modeset=1\n": {"nvidia_drm": "modeset=1"},
        "  options\trebellions\tdepth=7\n": {"rebellions": "depth=7"},
        "options rebellions depth=7\noptions rebellions trace=1\n": {"rebellions": "depth=7 trace=1"},
        "options rebellions \\\n depth=7 \\\n trace=1\n": {"rebellions": "depth=7   trace=1"},
        "# options rebellions depth=7\n": {},
        "blacklist rebellions\ninstall rebellions /bin/false\nalias x rebellions\n": {},
        "options rebellions\noptions\n\n": {},
        b"options rebellions depth=\xff\n": {"rebellions": "depth=\ufffd"},
        "": {},
    }
    for text, found in texts.items():
        tree.put("/etc/modprobe.d/a.conf", text)
        assert options(tree) == found


def test_files_count_by_name_and_the_administrators_folder_hides_the_distributions(tree: Tree) -> None:
    for path, text in (
        ("lib/modprobe.d/z.conf", "last=1"),
        ("lib/modprobe.d/b.conf", "hidden=1"),
        ("run/modprobe.d/b.conf", "hidden=2"),
        ("etc/modprobe.d/b.conf", "second=1"),
        ("usr/lib/modprobe.d/a.conf", "first=1"),
        ("etc/alternatives/nvidia.conf", "link=1"),
    ):
        tree.put(path, f"options rebellions {text}\n")
    folder = tree.root / "etc/modprobe.d"
    (folder / "folder.conf").mkdir()
    for name, target in (("c", "/etc/alternatives/nvidia"), ("gone", "/etc/alternatives/gone"), ("loop", "loop")):
        (folder / f"{name}.conf").symlink_to(f"{target}.conf")
    os.mkfifo(folder / "fifo.conf")
    assert options(tree) == {"rebellions": "first=1 second=1 link=1 last=1"}, "what cannot be read is left out"


WORDS = ["options", "rebellions", "nvidia-drm", "a=1", "b='c d'", "#", "\\", "\n", " ", "\t", "install"]


@given(st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join) | st.text(max_size=200))
def test_what_is_handed_to_modprobe_is_read_the_same_again(text: str) -> None:
    found = kmod.options_in(text)
    assert kmod.options_in(kmod.as_config(found).decode()) == found


def test_modprobe_gets_them_before_those_of_its_folders(root: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    seen: list[tuple[list[str], str]] = []

    def run(argv: Sequence[str], *, pass_fds: Sequence[int], **_: Any) -> Result:
        (config,) = pass_fds
        assert f"/proc/self/fd/{config}" in argv
        seen.append((list(argv), Path(f"/proc/self/fd/{config}").read_text()))
        return Result(0, "", "")

    monkeypatch.setattr(kmod, "FOLDERS", (str(tmp_path), str(tmp_path / "absent")))
    monkeypatch.setattr(kmod, "run", run)
    kmod.load_module(root, KERNEL, "rebellions", soon(), {"rebellions": "depth=7", "core": "a=1"})
    ((argv, config),) = seen
    assert config == "options rebellions depth=7\noptions core a=1\n"
    assert argv[-4:] == ["--config", str(tmp_path), "--", "rebellions"]
    assert argv.count("--config") == 2


@pytest.mark.skipif(shutil.which("modprobe") is None, reason="this machine has no modprobe")
def test_modprobe_itself_reads_what_it_is_given_so() -> None:
    config = os.memfd_create("test")
    try:
        os.write(config, kmod.as_config({"rebellions": 'depth=7 name="a b"'}))
        argv = ["modprobe", "--config", f"/proc/self/fd/{config}", "--showconfig"]
        ran = subprocess.run(argv, pass_fds=(config,), capture_output=True, text=True, timeout=60, check=True)
    finally:
        os.close(config)
    assert 'options rebellions depth=7 name="a b"' in ran.stdout.splitlines()


# what a driver tree offers: looked up in its own list, inside the host's root, for the running kernel

ROOT = "/opt/driver"
PREFIX = f"{ROOT}/lib/modules/{KERNEL}/"
SMP = f"vermagic:  {KERNEL} SMP\n"


def trees(tree: Tree, kernel: str = KERNEL) -> ModuleTrees:
    return ModuleTrees(tree.roots, kernel)


def offer(tree: Tree, dep: str, *files: str) -> ModuleTrees:
    """A driver tree with this list and these files."""
    tree.put(f"{PREFIX}modules.dep", dep)
    for file in files:
        tree.put(f"{PREFIX}{file}", "")
    return trees(tree)


def test_a_module_is_looked_up_in_modules_dep(tree: Tree) -> None:
    (tree.root / "link").symlink_to(ROOT)
    for dep, name, path in (
        ("extra/rebellions.ko:\n", "rebellions", f"{PREFIX}extra/rebellions.ko"),
        ("extra/rebellions.ko.xz: a.ko b.ko\n", "rebellions", f"{PREFIX}extra/rebellions.ko.xz"),
        ("extra/rebellions.ko.zst:\n", "rebellions", f"{PREFIX}extra/rebellions.ko.zst"),
        ("extra/drv-pcie-host.ko:\n", "drv_pcie_host", f"{PREFIX}extra/drv-pcie-host.ko"),
        ("extra/drv_pcie-host.ko.gz:\n", "drv_pcie_host", f"{PREFIX}extra/drv_pcie-host.ko.gz"),
        ("/abs/rebellions.ko:\n", "rebellions", "/abs/rebellions.ko"),
        ("a/other.ko: x/rebellions.ko\nx/rebellions.ko:\n", "rebellions", f"{PREFIX}x/rebellions.ko"),
        ("a/other.ko: x/rebellions.ko\n", "rebellions", ""),
        ("extra/rebellions_core.ko:\nextra/xrebellions.ko:\n", "rebellions", ""),
        ("", "rebellions", ""),
        ("\n:::\n\xff\n", "rebellions", ""),
    ):
        found = offer(tree, dep)
        expected = [path, path, path.replace(ROOT, "/link"), ""]
        assert [found.find(root, name) for root in (ROOT, f"{ROOT}/", "/link", "/")] == expected


def test_a_root_says_what_it_offers(tree: Tree, tools: Tools) -> None:
    found = offer(tree, "x/rebellions.ko:\n", "x/rebellions.ko")
    tree.put("/proc/keys", KEYS)
    signed = "sig_id: PKCS#7\nsigner: Driver Signer\n"
    ran = tools(modinfo(f"version:  2.0\nvermagic:       {KERNEL} SMP\nversion: again\n{signed}"))
    source = found.source(ROOT, ("rebellions",))
    (one,) = source.modules
    assert (source.problem, source.version, one.vermagic) == ("", "2.0", f"{KERNEL} SMP")
    assert (one.path, one.is_signed, one.has_known_key) == (f"{PREFIX}x/rebellions.ko", True, True)
    assert ran[0] == ["modinfo", f"{tree.root}{PREFIX}x/rebellions.ko"]


def test_a_failed_modinfo_is_named_with_its_words_and_its_output_does_not_count(tree: Tree, tools: Tools) -> None:
    for result, why in (
        (Result(1, SMP, "modinfo: ERROR: Module x not found."), "Module x not found."),
        (Result(127, "", "modinfo: not found"), "modinfo: not found"),
        (Result(-9, "", ""), "exit status -9, no output"),
    ):
        tools(result)
        (file,) = offer(tree, "x/rebellions.ko:\n", "x/rebellions.ko").source(ROOT, ("rebellions",)).modules
        assert file.unread.startswith("modinfo failed: ")
        assert (why in file.unread, file.vermagic) == (True, "")


def test_a_root_without_the_module_says_for_which_kernels_it_is(tree: Tree) -> None:
    offer(tree, "")
    (tree.root / "opt/driver/lib/modules/5.15").mkdir()
    problem = trees(tree, "7.0").source(ROOT, ("rebellions",)).problem
    assert "no module rebellions for kernel 7.0 (it has: 5.15, 6.1.0-fake)" in problem
    assert "has no lib/modules" in trees(tree).source("/absent", ("rebellions",)).problem


def test_a_file_that_was_written_to_or_replaced_has_another_stamp(tree: Tree, tools: Tools) -> None:
    tools(Result(0, "version: 1.0\n", ""))
    path = tree.root / PREFIX.lstrip("/") / "extra/rebellions.ko"

    def stamp() -> str:
        (file,) = trees(tree).source(ROOT, ["rebellions"], in_depth=False).modules
        return file.stamp

    offer(tree, "extra/rebellions.ko:\n", "extra/rebellions.ko")
    seen = [stamp(), stamp()]
    assert seen[0] == seen[1] != ""
    path.write_bytes(b"other")
    seen.append(stamp())
    (tree.root / "new").write_bytes(b"other")
    (tree.root / "new").rename(path)
    seen.append(stamp())
    path.unlink()
    seen.append(stamp())
    assert len(set(seen)) == 4
    assert seen[-1] == ""


ELSEWHERE = "/lib/modules/other/extra"
DEP = "x/rebellions.ko: x/mid.ko x/base.ko\nx/mid.ko: x/base.ko\nx/base.ko:\nx/peer.ko: x/rebellions.ko x/base.ko\n"


def linked(tree: Tree, *names: str, to: str = ELSEWHERE) -> ModuleTrees:
    """A tree in which `names` are links of the host, as weak-updates are."""
    found = offer(tree, DEP, *(f"x/{name}.ko" for name in ("rebellions", "mid", "base", "peer")))
    for name in names:
        link = tree.root / f"{PREFIX.lstrip('/')}x/{name}.ko"
        link.unlink()
        link.symlink_to(f"{to}/{name}.ko")
        tree.put(f"/opt/driver/real/{name}.ko" if to.startswith("..") else f"{to}/{name}.ko", "")
    return found


@pytest.mark.parametrize(("name", "to"), [("", ""), ("rebellions", "../../../../real"), ("peer", ELSEWHERE)])
def test_modprobe_loads_where_it_finds_every_file_that_is_needed(tree: Tree, name: str, to: str) -> None:
    found = linked(tree, *([name] if to else []), to=to)
    assert found.one_by_one(ROOT, ("rebellions",)) == ()


@pytest.mark.parametrize("name", ["rebellions", "mid", "base"])
def test_a_link_that_leads_elsewhere_here_means_file_by_file_each_after_what_it_needs(tree: Tree, name: str) -> None:
    found = linked(tree, name).one_by_one(ROOT, ("rebellions", "peer"))
    assert [one for one, _ in found] == ["base", "mid", "rebellions", "peer"]
    assert dict(found)[name] == f"{PREFIX}x/{name}.ko"


def test_without_a_list_such_a_link_is_a_problem_of_the_tree(tree: Tree, tools: Tools) -> None:
    tools(modinfo(SMP))
    found = linked(tree, "rebellions")
    (tree.root / f"{PREFIX.lstrip('/')}modules.dep").unlink()
    assert "depmod would not find" in found.source(ROOT, ("rebellions",)).problem


@pytest.mark.parametrize("links", [(), ("base",)])
def test_modprobe_is_asked_before_where_it_is_to_load(tree: Tree, tools: Tools, links: tuple[str, ...]) -> None:
    tree.put("/etc/modprobe.d/a.conf", "options base a=1\noptions ext4 b=2\n")
    tree.put(f"{ROOT}/etc/modprobe.d/driver.conf", "options rebellions c=3\noptions ext4 d=4\n")
    ran = tools(modinfo(f"{SMP}depends:  base\n"))
    source = linked(tree, *links).source(ROOT, ("rebellions",))
    assert any("--show-depends" in argv for argv in ran) is not bool(links)
    assert source.options == {"base": "a=1"}, "only those of what is loaded"
    assert source.given == {"rebellions": "c=3"}, "those of the driver root"


KEYS = """\
0b5a5d3c I--Q---     1 perm 1f3f0000     0 65534 keyring   _uid.0: empty
302d2d52 I------     1 perm 1f010000     0     0 asymmetri Fedora kernel signing key: d69a84e6bce3d216: X509.rsa a7118079 []
30a1b2c3 I------     1 perm 1f030000     0     0 asymmetri Vendor Inc: Driver Signer: 00ff: X509.rsa 1234abcd []
30a1b2c4 IR-----     1 perm 1f030000     0     0 asymmetri Revoked Signer: 00fe: X509.rsa 1234abce []
30a1b2c5 I------     1 perm 1f030000     0     0 blacklist bin:Banned Signer: 00fd
"""  # noqa: E501
"""The second line is the kernel's own example (admin-guide/module-signing); the others have its form."""


def test_a_key_of_the_kernel_is_known_by_the_name_of_the_signer() -> None:
    known = ["Fedora kernel signing key", "Driver Signer"]
    others = ("Signer", "Revoked Signer", "Banned Signer", "")
    assert [signer for signer in (*known, *others) if kmod.has_key(KEYS, signer)] == known


# firmware: looked for where this kernel looks, never in a driver root

CHIP = "vendor/chip.bin"
STANDARD = (f"/lib/firmware/updates/{KERNEL}", "/lib/firmware/updates", f"/lib/firmware/{KERNEL}", "/lib/firmware")


def test_the_kernels_own_folders_are_searched_after_the_one_that_is_set(tree: Tree) -> None:
    own = f"{ROOT}/lib/firmware"
    assert kmod.firmware_search_path(tree.roots.sys, KERNEL, "") == STANDARD
    for text, first in (("", ()), ("\n", ()), (f"{own}\n", (own,))):
        tree.put("/sys/module/firmware_class/parameters/path", text)
        assert kmod.firmware_search_path(tree.roots.sys, KERNEL, "") == (*first, *STANDARD)


@pytest.mark.parametrize("folder", STANDARD)
@pytest.mark.parametrize("suffix", ["", ".xz", ".zst"])
def test_a_file_in_any_of_them_is_found_compressed_or_not(tree: Tree, folder: str, suffix: str) -> None:
    files = tree.roots.files()
    (tree.root / "usr/lib").mkdir(parents=True)
    (tree.root / "lib").symlink_to("/usr/lib")
    assert not kmod.found_firmware(files, STANDARD, CHIP)
    tree.put(f"/usr{folder}/{CHIP}{suffix}", "")
    for name, is_there in ((CHIP, True), ("vendor/ch*.bin", True), ("vendor/other*.bin", False)):
        assert bool(kmod.found_firmware(files, STANDARD, name)) is is_there


def test_firmware_of_the_driver_root_is_not_found_by_the_kernel(tmp_path: Path, tools: Tools) -> None:
    own = f"{ROOT}/lib/firmware"
    rows: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str], ...] = (
        (f"{own}/{CHIP}", (CHIP, "there.bin", "absent.bin"), (CHIP, "absent.bin"), own),
        (f"/lib/firmware/{CHIP}.xz", (CHIP,), (), ""),
        ("/lib/firmware/there.bin", (), (), ""),
        ("/lib/firmware/there.bin", (CHIP,), (CHIP,), ""),
    )
    for number, (there, named, missing, folder) in enumerate(rows):
        tree = Tree(tmp_path / str(number))
        for path in (there, "/lib/firmware/there.bin"):
            tree.put(path, "")
        found = offer(tree, "rebellions.ko:\n", "rebellions.ko")
        tools(modinfo(SMP + "".join(f"firmware:       {name}\n" for name in named)))
        expected = (MissingFirmware("rebellions", missing, STANDARD, folder),) if missing else ()
        assert found.source(ROOT, ("rebellions",)).missing_firmware == expected, f"row {number}"


NEEDED = frozenset({"printk", "rebellions_core_open"})
PACKED = {"": MODULE, ".gz": gzip.compress(MODULE), ".xz": lzma.compress(MODULE), ".zst": zstandard.compress(MODULE)}
OTHERS = (b"", b"\x7fELF", *(b"\x7fELF" + word + bytes(200) for word in (b"\x01\x01", b"\x02\x02")), MODULE[:-1])


def test_undefined_global_symbols_are_needed_and_what_is_no_such_file_is_unknown(tmp_path: Path) -> None:
    for suffix, content, found in (
        *((suffix, content, NEEDED) for suffix, content in PACKED.items()),
        (".zst", zstandard.ZstdCompressor(level=19, write_content_size=False).compress(MODULE), NEEDED),
        ("", elf(("init_module", GLOBAL, 1)), frozenset()),
        *((suffix, content[:-9], None) for suffix, content in PACKED.items()),
        *((suffix, b"of no such form", None) for suffix in PACKED),
        *(("", content, None) for content in (*OTHERS, b"\x28\xb5\x2f\xfd" + bytes(20))),
    ):
        path = tmp_path / f"m.ko{suffix}"
        path.write_bytes(content)
        assert kmod.needed_symbols(path) == found, (suffix, content)
    assert kmod.needed_symbols(tmp_path) is kmod.needed_symbols(tmp_path / "absent.ko") is None


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elf") / "m.ko"


@given(st.binary(max_size=400))
def test_no_garbage_breaks_the_reader(file: Path, content: bytes) -> None:
    for head in (b"", MAGIC):
        file.write_bytes(head + content)
        assert kmod.needed_symbols(file) is None or head


@given(st.integers(0, len(MODULE) - 1), st.binary(min_size=1, max_size=8))
def test_no_damage_to_a_module_breaks_the_reader(file: Path, at: int, damage: bytes) -> None:
    file.write_bytes(MODULE[:at] + damage + MODULE[at + len(damage) :])
    found = kmod.needed_symbols(file)
    assert found is None or isinstance(found, frozenset)


SECTIONS_AT = len(MODULE) - 3 * SECTION_BYTES


@pytest.mark.parametrize("offset", [2**40, 2**63, 2**64 - 1])
@pytest.mark.parametrize("at", [0x28, SECTIONS_AT + SECTION_BYTES + 24, SECTIONS_AT + 2 * SECTION_BYTES + 24])
def test_an_offset_beyond_any_file_is_unknown(file: Path, at: int, offset: int) -> None:
    content = bytearray(MODULE)
    struct.pack_into("<Q", content, at, offset)
    file.write_bytes(content)
    assert kmod.needed_symbols(file) is None


def test_a_driver_is_never_compared_with_itself(tmp_path: Path, tools: Tools) -> None:
    """It was built for another kernel, and the host's list names it first; zfs is a leftover of that kernel too."""

    def answer(argv: Sequence[str]) -> Result:
        is_stale = "rebellions" in argv[-1] or "zfs" in argv[-1]
        if "--dump-modversions" in argv:
            return Result(0, f"{'0xbb' if is_stale else '0xaa'} module_layout\n", "")
        return Result(0, f"vermagic: {KERNEL} {'preempt' if is_stale else 'SMP'}\n", "")

    tools(answer)
    rows: tuple[tuple[list[str], bool | None], ...] = (
        (["updates/rebellions.ko", "kernel/fs/ext4.ko"], False),
        (["updates/rebellions.ko", "extra/zfs.ko", "kernel/fs/ext4.ko"], False),
        (["updates/rebellions.ko", "extra/other.ko"], False),
        (["updates/rebellions.ko"], None),
        ([], None),
    )
    for number, (listed, matches) in enumerate(rows):
        tree, host = Tree(tmp_path / str(number)), f"/lib/modules/{KERNEL}"
        tree.put(f"{host}/modules.dep", "".join(f"{name}:\n" for name in listed))
        tree.put(f"{PREFIX}modules.dep", "x/rebellions.ko:\n")
        for path in (*(f"{host}/{name}" for name in listed), f"{PREFIX}x/rebellions.ko"):
            tree.put(path, "")
        (file,) = ModuleTrees(tree.roots, KERNEL, PROFILE.modules).source(ROOT, ("rebellions",)).modules
        assert (file.layout_matches, file.flags_match) == (matches, matches), listed


MADE = f"$0/opt/driver/lib/modules/{KERNEL}"
OPT = f"mount -t tmpfs tmpfs $0/opt && mkdir -p {MADE} &&"


@pytest.mark.parametrize(
    ("mount", "is_elsewhere"),
    [
        (f"mount -t tmpfs tmpfs {MADE} &&", True),  # the root's own folder is on the host's file system
        (OPT, True),
        (f"mkdir -p $0/tree && {OPT} mount --bind $0/tree {MADE} &&", False),
        ("mount -t tmpfs tmpfs $0/lib/modules && cp -r $0/copy/. $0/lib/modules &&", True),
        ("", False),
    ],
)
def test_loadpin_accepts_no_module_from_another_file_system(tree: Tree, mount: str, is_elsewhere: bool) -> None:
    """On a real mount."""
    rows: tuple[tuple[dict[str, str], bool], ...] = (
        ({}, False),
        ({"proc/sys/kernel/loadpin/enabled": "1"}, True),
        ({"proc/sys/kernel/loadpin/enforce": "1"}, True),
        ({"proc/sys/kernel/loadpin/enabled": "0", "sys/kernel/security/lsm": "capability,loadpin"}, False),
        ({"sys/kernel/security/lsm": "lockdown,capability,loadpin"}, True),
        ({"sys/kernel/security/lsm": "loadpin", "proc/cmdline": "quiet loadpin.enforce=0\n"}, False),
        ({"sys/kernel/security/lsm": "loadpin", "proc/cmdline": "loadpin.enabled=0\n"}, False),
        ({"sys/kernel/security/lsm": "loadpin", "proc/cmdline": "loadpin.exclude=kexec-image\n"}, True),
        ({"proc/sys/kernel/loadpin/enabled": "1", "proc/cmdline": "loadpin.exclude=a,kernel-module\n"}, False),
        ({"proc/sys/kernel/loadpin/enabled": "1", "proc/cmdline": 'loadpin.exclude="kernel-module,a"\n'}, False),
        ({"sys/kernel/security/lsm": "lockdown,capability"}, False),
    )
    root, host = str(tree.root), f"/lib/modules/{KERNEL}"
    tree.put(f"{host}/modules.dep", "kernel/x.ko:\nextra/rebellions.ko:\n")
    for name in ("kernel/x.ko", "extra/rebellions.ko"):
        tree.put(f"{host}/{name}", "")
    shutil.copytree(tree.root / "lib/modules", tree.root / "copy")
    (tree.root / f"opt/driver{host}").mkdir(parents=True)
    made = f'at={MADE}; echo rebellions.ko: > "$at/modules.dep" && touch "$at/rebellions.ko" && exec "$@"'
    given = json.dumps([files for files, _ in rows])
    words = [*unshare(), "sh", "-c", f"{mount} {made}", root, executable, "-c", PINNED, root, given]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.splitlines() == [str((is_out and is_elsewhere, False)) for _, is_out in rows]


PINNED = f"""
import json, sys
from pathlib import Path
from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.modules import ModuleTrees
root = Path(sys.argv[1])
for files in json.loads(sys.argv[2]):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\\n")
    trees = ModuleTrees(HostRoots(root, root / "proc", root / "sys", root / "dev"), {KERNEL!r})
    print(tuple(trees.source(one, ("rebellions",)).is_pinned_out for one in ("/opt/driver", "/")))
    for path in files:
        (root / path).unlink()
"""
