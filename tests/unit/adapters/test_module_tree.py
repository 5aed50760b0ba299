"""What a driver tree offers is looked up in its own list, inside the host's root, for the running kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host import modules
from driver_manager.adapters.host.files import HostFiles
from driver_manager.adapters.host.modules import ModuleTrees
from driver_manager.adapters.process.tools import Result

KERNEL = "6.1.0-fake"


def tree(root: Path, dep: str, *files: str) -> ModuleTrees:
    folder = root / f"opt/driver/lib/modules/{KERNEL}"
    folder.mkdir(parents=True)
    (folder / "modules.dep").write_text(dep)
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    return trees(root)


def trees(root: Path, kernel: str = KERNEL) -> ModuleTrees:
    return ModuleTrees(HostFiles(root, root / "proc"), root / "proc", root / "sys", kernel)


PREFIX = f"/opt/driver/lib/modules/{KERNEL}/"


@pytest.mark.parametrize(
    ("dep", "name", "path"),
    [
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
    ],
)
def test_a_module_is_looked_up_in_modules_dep(tmp_path: Path, dep: str, name: str, path: str) -> None:
    assert tree(tmp_path, dep).find("/opt/driver", name) == path
    assert trees(tmp_path).find("/opt/driver/", name) == path


def test_no_tree_has_no_module(tmp_path: Path) -> None:
    assert trees(tmp_path).find("/", "rebellions") == ""


def test_a_tree_behind_an_absolute_link_of_the_host_is_found_inside_it(tmp_path: Path) -> None:
    files = tree(tmp_path, "rebellions.ko:\n")
    (tmp_path / "link").symlink_to("/opt/driver")
    assert files.find("/link", "rebellions") == f"/link/lib/modules/{KERNEL}/rebellions.ko"


def modinfo(monkeypatch: pytest.MonkeyPatch, out: str) -> list[list[str]]:
    """Let `out` be what modinfo prints; the argument lists of all tools that were run."""
    ran: list[list[str]] = []

    def run(argv: Sequence[str], **_: Any) -> Result:
        ran.append(list(argv))
        return Result(0, out if argv[0] == "modinfo" else "", "")

    monkeypatch.setattr(modules, "run", run)
    return ran


def test_a_root_says_what_it_offers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tree(tmp_path, "x/rebellions.ko:\n", "x/rebellions.ko")
    ran = modinfo(monkeypatch, f"version:  2.0\nvermagic:       {KERNEL} SMP\nversion: again\n")
    source = found.source("/opt/driver", ("rebellions",))
    assert (source.problem, source.version, source.modules[0].vermagic) == ("", "2.0", f"{KERNEL} SMP")
    assert source.modules[0].path == f"{PREFIX}x/rebellions.ko"
    assert ran[0] == ["modinfo", str(tmp_path / f"opt/driver/lib/modules/{KERNEL}/x/rebellions.ko")]


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (Result(1, f"vermagic: {KERNEL}\n", "modinfo: ERROR: Module x not found."), "Module x not found."),
        (Result(127, "", "modinfo: not found"), "modinfo: not found"),
        (Result(-9, "", ""), "exit status -9, no output"),
    ],
)
def test_a_tool_that_fails_is_said_with_its_words_and_its_output_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: Result, why: str
) -> None:
    found = tree(tmp_path, "x/rebellions.ko:\n", "x/rebellions.ko")
    monkeypatch.setattr(modules, "run", lambda *_, **__: result)
    (file,) = found.source("/opt/driver", ("rebellions",)).modules
    assert file.unread.startswith("modinfo failed: ")
    assert (why in file.unread, file.vermagic) == (True, "")


DEP = "x/rebellions.ko: x/mid.ko x/base.ko\nx/mid.ko: x/base.ko\nx/base.ko:\nx/peer.ko: x/rebellions.ko x/base.ko\n"


def linked(root: Path, *names: str, to: str = "/lib/modules/other/extra") -> ModuleTrees:
    """A tree in which `names` are absolute links of the host, as weak-updates are."""
    found = tree(root, DEP, *(f"x/{name}.ko" for name in ("rebellions", "mid", "base", "peer")))
    for name in names:
        link = root / f"{PREFIX.lstrip('/')}x/{name}.ko"
        link.unlink()
        link.symlink_to(f"{to}/{name}.ko")
        target = root / to.lstrip("/") / f"{name}.ko"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    return found


def test_modprobe_loads_where_it_finds_every_file(tmp_path: Path) -> None:
    assert linked(tmp_path).one_by_one("/opt/driver", ("rebellions", "peer")) == ()


@pytest.mark.parametrize("name", ["rebellions", "mid", "base"])
def test_a_link_that_leads_elsewhere_in_this_container_means_file_by_file_each_after_what_it_needs(
    tmp_path: Path, name: str
) -> None:
    found = linked(tmp_path, name).one_by_one("/opt/driver", ("rebellions", "peer"))
    assert [one for one, _ in found] == ["base", "mid", "rebellions", "peer"]
    assert dict(found)[name] == f"{PREFIX}x/{name}.ko"
    assert linked(tmp_path / "again", "peer").one_by_one("/opt/driver", ("rebellions",)) == (), "nobody needs it"


def test_a_relative_link_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    trees_of = linked(tmp_path, "rebellions", to="/opt/driver/real")
    link = tmp_path / f"{PREFIX.lstrip('/')}x/rebellions.ko"
    link.unlink()
    link.symlink_to("../../../../real/rebellions.ko")
    assert trees_of.one_by_one("/opt/driver", ("rebellions",)) == ()


def test_without_a_list_such_a_link_is_a_problem_of_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modinfo(monkeypatch, f"vermagic:  {KERNEL} SMP\n")
    found = linked(tmp_path, "rebellions")
    (tmp_path / f"{PREFIX.lstrip('/')}modules.dep").unlink()
    assert "depmod would not find" in found.source("/opt/driver", ("rebellions",)).problem


@pytest.mark.parametrize(("links", "asked"), [((), True), (("base",), False)])
def test_modprobe_is_asked_before_where_it_is_to_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: tuple[str, ...], asked: bool
) -> None:
    ran = modinfo(monkeypatch, f"vermagic:  {KERNEL} SMP\n")
    linked(tmp_path, *links).source("/opt/driver", ("rebellions",))
    assert any("--show-depends" in argv for argv in ran) is asked


def test_options_of_the_host_are_shown_for_what_is_loaded_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modinfo(monkeypatch, f"vermagic:  {KERNEL} SMP\ndepends:  base\n")
    (tmp_path / "etc/modprobe.d").mkdir(parents=True)
    (tmp_path / "etc/modprobe.d/a.conf").write_text("options base a=1\noptions ext4 b=2\n")
    assert linked(tmp_path).source("/opt/driver", ("rebellions",)).options == {"base": "a=1"}


def test_a_root_without_the_module_says_for_which_kernels_it_is(tmp_path: Path) -> None:
    tree(tmp_path, "")
    (tmp_path / "opt/driver/lib/modules/5.15").mkdir()
    problem = trees(tmp_path, "7.0").source("/opt/driver", ("rebellions",)).problem
    assert "no module rebellions for kernel 7.0 (it has: 5.15, 6.1.0-fake)" in problem
    assert "has no lib/modules" in trees(tmp_path).source("/absent", ("rebellions",)).problem


def test_a_file_that_was_written_to_or_replaced_has_another_stamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "run", lambda *_, **__: Result(0, "version: 1.0\n", ""))
    path = tmp_path / PREFIX.lstrip("/") / "extra/rebellions.ko"

    def stamp() -> str:
        (file,) = trees(tmp_path).source("/opt/driver", ["rebellions"], in_depth=False).modules
        return file.stamp

    tree(tmp_path, "extra/rebellions.ko:\n", "extra/rebellions.ko")
    seen = [stamp(), stamp()]
    assert seen[0] == seen[1] != ""
    path.write_bytes(b"other")
    seen.append(stamp())
    (tmp_path / "new").write_bytes(b"other")
    (tmp_path / "new").rename(path)
    seen.append(stamp())
    path.unlink()
    seen.append(stamp())
    assert len(set(seen)) == 4
    assert seen[-1] == ""
