"""A reload that health-watch requested, on a real kernel: of a device that it recovers, and of one that it does not."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.notes import load_text
from driver_manager.domain.health.watch import HealthState, History, encode_watch_record
from driver_manager.domain.host import ReloadRequest, encode_reload_request
from driver_manager.profiles import builtin
from tests.support.kernel.guest_command import EDU_PCI_VENDOR, Command, Ended, assert_given_back, old_driver
from tests.support.kernel.guest_fixtures import DriverRoots, boot_id

pytestmark = [pytest.mark.usefixtures("guest_kernel"), pytest.mark.release]

PROFILE = builtin()["rebellions"]
HOST = HostRoots(*map(Path, ("/", "/proc", "/sys", "/dev")))
REQUEST = Path(PROFILE.paths.reload_request)
SICK = Path("/sys/module/rebellions/parameters/sick")
STATE_AT, BROKEN = 0x3C, b"\xbd"  # PCI_INTERRUPT_LINE, as in rebellions.c
DEVICE = '{{"name": "{name}", "status": "{word}", "pci": {{"bus_id": "{at}"}}}}'
TOOL = """#!/bin/sh
word=normal; [ "$(cat {sick})" = Y ] && word=error
echo '{{"devices": [{devices}], "contexts": []}}'
"""


@dataclass
class Accelerator:
    """The devices of the stand-in driver, whose tool reads the first one's state. The driver is current."""

    command: Command
    root: Path
    addresses: list[str]

    def load(self) -> str:
        return load_text(HOST, PROFILE.modules)

    def health(self) -> str:
        found: str = json.loads(self._run("health-watch", "--once", "-o", "json").out)["health"]
        return found

    def ask(self, load: str) -> None:
        """Request a reload as health-watch does, which has seen all devices work before."""
        served = History(HealthState.WEDGED, driver=load, served=tuple(self.addresses))
        Path(PROFILE.paths.health_record).write_text(encode_watch_record(served, boot_id()))
        REQUEST.write_text(encode_reload_request(ReloadRequest(boot_id(), load, "rbln0 is error")))

    def reconcile(self) -> Ended:
        return self._run("reconcile-driver-state")

    @contextlib.contextmanager
    def broken(self) -> Iterator[None]:
        """Let the first device be broken, until the next boot were it not for this end."""
        config = Path(f"/sys/bus/pci/devices/{self.addresses[0]}/config")
        with config.open("r+b", buffering=0) as registers:
            registers.seek(STATE_AT)
            before = registers.read(1)
            registers.seek(STATE_AT)
            registers.write(BROKEN)
            yield
            registers.seek(STATE_AT)
            registers.write(before)

    def _run(self, *words: str) -> Ended:
        return self.command.run(*words, DRIVER_ROOT=str(self.root), DRIVER_CONFIG_DIGEST="old-digest")


@pytest.fixture
def accelerator(command: Command, roots: DriverRoots, tmp_path: Path) -> Accelerator:
    edu = command.by_profile(pci_vendor=EDU_PCI_VENDOR)
    tree = tmp_path / "v1"
    shutil.copytree(roots["v1"], tree)
    old_driver(roots)
    record = Path(PROFILE.paths.load_record)
    record.write_text(json.dumps({**json.loads(record.read_text()), "root": str(tree)}))
    first, *others = json.loads(edu.run("status", "-o", "json").out)["host"]["pciDevices"]
    tool = tree / "usr/bin/rbln-smi"
    tool.parent.mkdir(parents=True)
    shown = [DEVICE.format(name="rbln0", word="'$word'", at=first)]
    shown += [DEVICE.format(name=at, word="normal", at=at) for at in others]
    tool.write_text(TOOL.format(sick=SICK, devices=", ".join(shown)))
    tool.chmod(0o755)
    return Accelerator(edu, tree, [first, *others])


def test_a_device_that_is_bad_until_a_reload_works_after_the_requested_one(accelerator: Accelerator) -> None:
    assert accelerator.health() == "healthy"
    before = accelerator.load()
    SICK.write_text("1")
    assert accelerator.health() == "unhealthy"
    idle = accelerator.reconcile()
    assert (idle.code, accelerator.load(), accelerator.health()) == (0, before, "unhealthy"), idle.err
    accelerator.ask(before)
    done = accelerator.reconcile()
    assert done.code == 0, done.err
    assert "a reload was requested to recover the driver: rbln0 is error" in done.err
    after = accelerator.load()
    assert (after not in ("", before), accelerator.health(), REQUEST.exists()) == (True, "healthy", False)
    assert_given_back(accelerator.command)


def test_a_device_that_is_bad_until_the_boot_is_reloaded_once_and_stays_bad(accelerator: Accelerator) -> None:
    before = accelerator.load()
    with accelerator.broken():
        SICK.write_text("1")
        accelerator.ask(before)
        asked = REQUEST.read_text()
        done = accelerator.reconcile()
        after = accelerator.load()
        assert (done.code, after not in ("", before), REQUEST.exists()) == (0, True, False), done.err
        assert "rbln0 is error, as before the swap" in done.err
        assert accelerator.health() == "unhealthy"
        assert_given_back(accelerator.command)
        REQUEST.write_text(asked)
        again = accelerator.reconcile()
        assert "nothing to do: driver is current" in again.err + again.out
        assert (again.code, accelerator.load(), accelerator.health()) == (0, after, "unhealthy"), again.err
