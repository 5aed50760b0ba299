"""Effects on a host: what is loaded is proved, what failed is taken back, and no mount of the host is touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host import modules as kmod
from driver_manager.adapters.host import pci as udev
from driver_manager.adapters.host import system as host_system
from driver_manager.adapters.host.system import NODE_POLL_S, LinuxHost
from driver_manager.adapters.process.tools import NOT_FOUND, Result
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ConfigError, ModuleFailed, ModuleStuck
from driver_manager.domain.host import TIMED_OUT, DriverSource, Health, ModuleFile
from driver_manager.domain.profile import NodeMaker, Profile
from tests.support.fakes.builders import ASCEND, PROFILE, PROFILES, source
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.deadlines import soon
from tests.support.fakes.host_folders import KERNEL, Tree, load, mountinfo

ROOT = PROFILE.paths.driver_root
SOURCE = DriverSource("/opt/new", (ModuleFile("rebellions", "/opt/new/rebellions.ko", "2.0"),))


class Machine(Tree):
    """A host whose modprobe, rmmod and umount are functions."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root)
        self.clock = FakeClock()
        self.ran: list[list[str]] = []
        self.on_modprobe: Callable[[str], Result] = lambda _: Result(0, "", "")
        self.on_umount: Callable[[Sequence[str]], Result] = lambda _: Result(0, "", "")
        self.put(f"/opt/new/lib/modules/{KERNEL}/modules.dep", "")
        monkeypatch.setattr(kmod, "run", self.run)
        monkeypatch.setattr(host_system, "run", self.run)
        monkeypatch.setattr(udev, "_monitor", lambda: None)

    def run(self, argv: Sequence[str], **_: Any) -> Result:
        self.ran.append(list(argv))
        if argv[0] == "modprobe":
            return self.on_modprobe(argv[-1])
        if argv[0] == "umount":
            return self.on_umount(argv)
        if argv[0] == "rmmod":
            self.gone(argv[-1])
        return Result(0, "", "")

    def loaded(self, name: str, version: str = "2.0", *holders: str) -> None:
        load(self.root / "sys", name, *holders, version=f"{version}\n")

    def gone(self, name: str) -> None:
        for folder in (self.root / "sys/module").iterdir():
            (folder / "holders" / name).unlink(missing_ok=True)
        folder = self.root / "sys/module" / name
        for file in [*(folder / "holders").iterdir(), *(entry for entry in folder.iterdir() if entry.is_file())]:
            file.unlink()
        (folder / "holders").rmdir()
        folder.rmdir()

    def system(self, profile: Profile = PROFILE) -> LinuxHost:
        return LinuxHost(self.roots, profile, self.clock)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


# modules


def test_a_driver_that_is_there_in_its_version_is_loaded(machine: Machine) -> None:
    def works(name: str) -> Result:
        machine.loaded(name)
        return Result(0, "", "")

    machine.on_modprobe = works
    machine.system().load(SOURCE, soon())
    assert list(machine.system().modules()) == ["rebellions"]


@pytest.mark.parametrize(
    ("there", "said"), [("", "but .* is not loaded"), ("1.0", "is loaded in version 1.0, not 2.0")]
)
def test_a_modprobe_that_did_nothing_is_a_failure(machine: Machine, there: str, said: str) -> None:
    if there:
        machine.loaded("rebellions", there)
    with pytest.raises(ModuleFailed, match=said):
        machine.system().load(SOURCE, soon())
    assert list(machine.system().modules()) == (["rebellions"] if there else []), "what was there before stays"


def test_a_failed_load_takes_back_what_it_left_and_nothing_else(machine: Machine) -> None:
    machine.loaded("rebellions_old", "1.0")

    def half(_: str) -> Result:
        machine.loaded("rebellions_core", "2.0")
        return Result(1, "", "modprobe: ERROR: could not insert")

    machine.on_modprobe = half
    with pytest.raises(ModuleFailed, match="could not insert"):
        machine.system().load(SOURCE, soon())
    assert ["rmmod", "--", "rebellions_core"] in machine.ran
    assert list(machine.system().modules()) == ["rebellions_old"]


def test_a_dependency_that_is_stuck_after_a_failed_load_is_told_as_such(machine: Machine) -> None:
    def half(_: str) -> Result:
        machine.loaded("rebellions_core", "2.0")
        return Result(1, "", "modprobe: ERROR: could not insert")

    def hung(name: str) -> None:
        (machine.root / "sys/module" / name / "initstate").write_text("going\n")

    machine.on_modprobe, machine.gone = half, hung  # type: ignore[method-assign]  # an rmmod that hangs
    with pytest.raises(ModuleStuck, match="rebellions_core is stuck"):
        machine.system().load(SOURCE, Deadline.after(90.0, machine.clock.monotonic))


def test_modules_are_loaded_again_one_by_one_in_the_given_order(machine: Machine) -> None:
    machine.system().reload(source("/opt/new"), ("rebellions", "rebellions_peer"), soon())
    assert [argv[-1] for argv in machine.ran if argv[0] == "modprobe"] == ["rebellions", "rebellions_peer"]
    machine.on_modprobe = lambda name: Result(1, "", f"modprobe: FATAL: Module {name} not found")
    with pytest.raises(ModuleFailed, match="Module rebellions_peer not found"):
        machine.system().reload(source("/opt/new"), ("rebellions_peer",), soon())


# mounts


@pytest.mark.parametrize("point", ["/", "/run", "/usr", "/etc", "/var/lib/kubelet", "/opt", ""])
def test_a_mount_that_the_host_lives_in_is_never_unmounted(machine: Machine, point: str) -> None:
    with pytest.raises(ModuleFailed, match="it is a system directory of the host"):
        machine.system().unmount(point, soon())
    assert machine.ran == []


def test_a_busy_mount_is_detached_lazily(machine: Machine) -> None:
    machine.put("/proc/1/mountinfo", mountinfo("/", ROOT))

    def busy_at_first(argv: Sequence[str]) -> Result:
        if "--lazy" in argv:
            machine.put("/proc/1/mountinfo", mountinfo("/"))
            return Result(0, "", "")
        return Result(32, "", "umount: target is busy.")

    machine.on_umount = busy_at_first
    machine.system().unmount(ROOT, soon())
    target = str(machine.root / ROOT.lstrip("/"))
    assert machine.ran == [["umount", "--", target], ["umount", "--lazy", "--", target]]


def test_a_mount_that_stays_is_told_though_the_tool_is_content(machine: Machine) -> None:
    machine.put("/proc/1/mountinfo", mountinfo("/", ROOT))
    machine.on_umount = lambda _: Result(0, "", "")
    with pytest.raises(ModuleFailed, match=f"cannot unmount {ROOT}"):
        machine.system().unmount(ROOT, soon())


def test_a_mount_that_is_gone_is_fine_and_one_that_stays_is_told(machine: Machine) -> None:
    machine.on_umount = lambda _: Result(32, "", "umount: not mounted.")
    machine.system().unmount(ROOT, soon())
    machine.put("/proc/1/mountinfo", mountinfo("/", ROOT))
    with pytest.raises(ModuleFailed, match=f"cannot unmount {ROOT}: umount: not mounted"):
        machine.system().unmount(ROOT, soon())


# files


def test_a_file_that_cannot_be_removed_is_told(machine: Machine) -> None:
    (machine.root / "run/rbln/folder").mkdir(parents=True)
    with pytest.raises(ModuleFailed, match="cannot remove /run/rbln/folder on the host"):
        machine.system().remove("/run/rbln/folder")
    machine.system().remove("/run/rbln/absent")
    machine.system().write_text("/run/rbln/state", "d\n")
    assert (machine.root / "run/rbln/state").read_text() == "d\n"
    machine.system().write_text("/run/rbln/secret", "d\n", is_secret=True)
    assert (machine.root / "run/rbln/secret").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError):
        machine.system().write_text("/run/rbln/folder", "d")


# device nodes


def test_device_nodes_are_awaited_only_where_there_is_a_device(machine: Machine) -> None:
    assert machine.system().await_device_nodes(Deadline.after(5.0, machine.clock.monotonic))
    machine.pci("0000:01:00.0", "0x1eff")
    assert not machine.system().await_device_nodes(Deadline.after(5.0, machine.clock.monotonic))
    assert machine.clock.now == pytest.approx(1_005.0)
    assert set(machine.clock.slept) == {NODE_POLL_S}


def test_nodes_that_user_space_makes_are_not_waited_for(machine: Machine) -> None:
    machine.pci("0000:01:00.0", "0x10de", "0x030200")
    assert machine.system(PROFILES["nvidia"]).await_device_nodes(Deadline.after(5.0, machine.clock.monotonic))
    assert machine.clock.slept == []
    paths = replace(PROFILES["nvidia"].paths, device_nodes_made_by=NodeMaker.MODULE)
    by_its_module = replace(PROFILES["nvidia"], paths=paths)
    assert not machine.system(by_its_module).await_device_nodes(Deadline.after(5.0, machine.clock.monotonic))


def test_a_device_node_ends_the_wait(machine: Machine) -> None:
    machine.pci("0000:01:00.0", "0x1eff")
    (machine.root / "dev").mkdir()
    machine.clock.after(1.1, (machine.root / "dev/rbln0").touch)
    assert machine.system().await_device_nodes(Deadline.after(15.0, machine.clock.monotonic))
    assert machine.clock.now < 1_001.5


# probe


def tool(machine: Machine) -> Path:
    path = machine.put(f"/opt/new/usr/bin/{PROFILE.probe.tool if PROFILE.probe else ''}", "")
    path.chmod(0o755)
    return path


def test_without_a_probe_or_its_tool_the_health_is_unknown(machine: Machine) -> None:
    assert machine.system().probe("/opt/new", soon()).health is Health.UNKNOWN
    assert machine.system(ASCEND).probe("/opt/new", soon()).health is Health.UNKNOWN
    assert machine.ran == []


@pytest.mark.parametrize(
    ("result", "health"),
    [
        (Result(0, '{"devices": [{"name": "rbln0", "status": "normal"}]}', ""), Health.HEALTHY),
        (Result(1, "", "no device"), Health.UNHEALTHY),
        (Result(TIMED_OUT, "", "no end"), Health.UNHEALTHY),
        (Result(NOT_FOUND, "", "not found"), Health.UNKNOWN),
    ],
)
def test_the_probe_of_the_driver_root_is_run(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, result: Result, health: Health
) -> None:
    path = tool(machine)
    library = machine.put("/opt/new/usr/lib64/librbln-ml.so", "")
    seen: list[tuple[list[str], dict[str, str]]] = []

    def run(argv: Sequence[str], *, timeout_s: float, env: dict[str, str]) -> Result:
        assert timeout_s == 20.0
        seen.append((list(argv), env))
        return result

    monkeypatch.setattr(host_system, "run", run)
    assert machine.system().probe("/opt/new/", soon()).health is health
    assert seen == [([str(path), "-j"], {"LD_PRELOAD": str(library)})]
