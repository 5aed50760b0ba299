"""What /sys says is loaded, what a driver tree offers, and what the tools' answers mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host import modules as kmod
from driver_manager.adapters.process.run import TOOL_TIMEOUT_S
from driver_manager.adapters.process.tools import Result
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ConfigError, ModuleBusy, ModuleFailed, ModuleStuck, Terminated
from driver_manager.domain.host import Module
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.deadlines import soon
from tests.support.fakes.host_folders import KERNEL, load

Tool = Callable[[Sequence[str]], Result]


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    (tmp_path / "sys/module").mkdir(parents=True)
    return tmp_path / "sys"


def test_the_drivers_modules_are_read_with_version_count_and_holders(sys: Path) -> None:
    load(sys, "rebellions_core", "rebellions", version="1.0\n")
    load(sys, "rebellions", "third_party", version="1.0\n", refcnt="3\n")
    load(sys, "third_party")
    load(sys, "ext4")
    assert kmod.driver_modules(sys, PROFILE.modules) == {
        "rebellions": Module("rebellions", "1.0", 3, ("third_party",)),
        "rebellions_core": Module("rebellions_core", "1.0", 1, ("rebellions",)),
        "third_party": Module("third_party", "", 0),
    }


def test_a_built_in_module_is_not_loaded(sys: Path) -> None:
    (sys / "module/rebellions/parameters").mkdir(parents=True)
    assert kmod.driver_modules(sys, PROFILE.modules) == {}


@pytest.mark.parametrize(("text", "count"), [("7\n", 7), ("-1\n", None), ("²\n", None), ("garbage", None), ("", None)])
def test_a_count_that_the_kernel_does_not_tell_is_none(sys: Path, text: str, count: int | None) -> None:
    load(sys, "rebellions", refcnt=text)
    assert kmod.driver_modules(sys, PROFILE.modules)["rebellions"].refcount == count


def test_a_module_on_its_way_in_counts_as_loaded_and_one_on_its_way_out_does_not(sys: Path) -> None:
    load(sys, "rebellions", initstate="going\n")
    load(sys, "rebellions_core", initstate="coming\n")
    assert set(kmod.driver_modules(sys, PROFILE.modules)) == {"rebellions_core"}


def test_an_unreadable_sys_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*module: No such file") as caught:
        kmod.driver_modules(tmp_path, PROFILE.modules)
    assert "SYS_ROOT" in caught.value.remedy


def test_conflicting_modules_are_those_loaded(sys: Path) -> None:
    load(sys, "nouveau")
    (sys / "module/builtin").mkdir()
    assert kmod.loaded_among(sys, ("nouveau", "builtin", "absent")) == ("nouveau",)


def tools(monkeypatch: pytest.MonkeyPatch, answer: Result | Tool) -> list[list[str]]:
    """Let `answer` speak for rmmod, modprobe and modinfo; the argument lists that were run."""
    ran: list[list[str]] = []

    def run(argv: Sequence[str], **_: Any) -> Result:
        ran.append(list(argv))
        return answer if isinstance(answer, Result) else answer(argv)

    monkeypatch.setattr(kmod, "run", run)
    return ran


# tools


@pytest.mark.parametrize(("left_s", "given_s"), [(600.0, TOOL_TIMEOUT_S), (5.0, 5.0), (0.0, 0.0)])
def test_a_tool_gets_its_own_time_or_what_is_left_of_the_deadline(
    sys: Path, monkeypatch: pytest.MonkeyPatch, left_s: float, given_s: float
) -> None:
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
    assert set(given) == {given_s}
    assert len(given) == 4, "rmmod, depmod, modprobe, insmod"


@pytest.mark.parametrize(
    "said",
    [
        "rmmod: ERROR: Module rebellions is in use",
        "rmmod: ERROR: Module rebellions is in use by: rebellions_peer",
        "rmmod: ERROR: could not remove 'rebellions': Resource temporarily unavailable",
        "rmmod: can't unload module 'rebellions': Device or resource busy",
    ],
)
def test_a_busy_module_is_busy_in_every_wording(sys: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    load(sys, "rebellions")
    tools(monkeypatch, Result(1, "", said))
    with pytest.raises(ModuleBusy, match="is in use"):
        kmod.unload_module(sys, "rebellions", soon(), FakeClock())


@pytest.mark.parametrize(
    "result",
    [
        Result(1, "", "rmmod: ERROR: could not remove 'rebellions': Operation not permitted"),
        Result(124, "", "rmmod: timed out after 60 s"),
        Result(127, "", "rmmod: not found"),
        Result(-9, "", ""),
    ],
)
def test_any_other_failure_is_told_with_the_tools_last_line(
    sys: Path, monkeypatch: pytest.MonkeyPatch, result: Result
) -> None:
    load(sys, "rebellions")
    tools(monkeypatch, result)
    with pytest.raises(ModuleFailed) as caught:
        kmod.unload_module(sys, "rebellions", soon(), FakeClock())
    assert result.last_line in caught.value.what


def test_a_count_above_nought_is_busy_whatever_the_tool_says(sys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(sys, "rebellions", refcnt="2")
    tools(monkeypatch, Result(124, "", "rmmod: timed out after 60 s"))
    with pytest.raises(ModuleBusy):
        kmod.unload_module(sys, "rebellions", soon(), FakeClock())


def test_a_module_that_is_gone_is_unloaded_whatever_the_tool_says(sys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tools(monkeypatch, Result(1, "", "rmmod: ERROR: Module rebellions is not currently loaded"))
    kmod.unload_module(sys, "rebellions", soon(), FakeClock())
    assert ran == [["rmmod", "--", "rebellions"]]


def test_a_module_that_stays_is_not_unloaded_whatever_the_tool_says(sys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(sys, "rebellions")
    tools(monkeypatch, Result(0, "", ""))
    with pytest.raises(ModuleFailed, match="is still loaded"):
        kmod.unload_module(sys, "rebellions", soon(), FakeClock())


def test_modules_of_the_driver_that_the_kernel_is_unloading_are_named(sys: Path) -> None:
    load(sys, "rebellions", "rebellions_peer", "third_party")
    for name in ("rebellions_peer", "third_party", "rebellions_core", "ext4"):
        load(sys, name, initstate="going\n")
    # A foreign module counts where it uses the driver: as long as it is there, the driver is in use.
    assert kmod.leaving_modules(sys, PROFILE.modules) == ("rebellions_core", "rebellions_peer", "third_party")
    assert set(kmod.driver_modules(sys, PROFILE.modules)) == {"rebellions"}


HUNG = (Result(124, "", "rmmod: timed out after 60 s"), Result(1, "", "rmmod: ERROR: Device or resource busy"))


@pytest.mark.parametrize("result", [*HUNG, Result(0, "", "")])
def test_a_module_whose_exit_does_not_return_is_stuck_and_not_gone(
    sys: Path, monkeypatch: pytest.MonkeyPatch, result: Result
) -> None:
    load(sys, "rebellions", initstate="going\n", refcnt="0\n")
    tools(monkeypatch, result)
    clock = FakeClock()
    with pytest.raises(ModuleStuck, match="rebellions is stuck while unloading") as caught:
        kmod.unload_module(sys, "rebellions", Deadline.after(90.0, clock.monotonic), clock)
    assert "Reboot the node" in caught.value.remedy
    assert clock.now >= 1_090.0, "it had all the time there was"


@pytest.mark.parametrize("result", HUNG)
def test_an_exit_that_returns_late_is_an_unload(sys: Path, monkeypatch: pytest.MonkeyPatch, result: Result) -> None:
    load(sys, "rebellions", initstate="going\n")
    tools(monkeypatch, result)
    clock = FakeClock()
    clock.after(80.0, (sys / "module/rebellions/initstate").unlink)
    kmod.unload_module(sys, "rebellions", Deadline.after(90.0, clock.monotonic), clock)


def test_a_run_that_is_told_to_end_does_not_wait_for_an_exit(sys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(sys, "rebellions", initstate="going\n")
    tools(monkeypatch, HUNG[0])
    clock = FakeClock()
    clock.after(3.0, clock.ask_to_end)
    with pytest.raises(Terminated):
        kmod.unload_module(sys, "rebellions", Deadline.after(90.0, clock.monotonic), clock)
    assert clock.now < 1_004.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A driver root with its list of modules."""
    tree = tmp_path / "new/lib/modules" / KERNEL
    tree.mkdir(parents=True)
    (tree / "modules.dep").touch()
    return tmp_path / "new"


def test_modprobe_gets_root_kernel_and_name_as_arguments(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tools(monkeypatch, Result(0, "", ""))
    kmod.load_module(root, KERNEL, "rebellions", soon())
    assert ran == [["modprobe", "--dirname", str(root), "--set-version", KERNEL, "--", "rebellions"]]


def test_a_tree_without_a_list_gets_one_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "lib/modules" / KERNEL / "modules.dep").unlink()
    ran = tools(monkeypatch, lambda argv: Result(int(argv[0] == "depmod"), "", "depmod: read-only"))
    with pytest.raises(ModuleFailed, match="depmod cannot make it: depmod: read-only"):
        kmod.load_module(root, KERNEL, "rebellions", soon())
    assert ran == [["depmod", "-b", str(root), "--", KERNEL]]


def test_a_failed_modprobe_names_root_and_reason(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools(monkeypatch, Result(1, "", "modprobe: ERROR: could not insert 'rebellions': Exec format error"))
    with pytest.raises(ModuleFailed, match=r"/new: .*Exec format error"):
        kmod.load_module(root, KERNEL, "rebellions", soon())


def test_no_name_that_begins_with_a_dash_is_an_option_of_a_tool(
    sys: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tools(monkeypatch, Result(1, "", "no"))
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
