"""Whole swaps by the profiles of two further vendors, with stand-in modules: order, parameters, conflicts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kernel.guest_command import Command
from tests.support.kernel.guest_fixtures import DriverRoots, boot_id, is_loaded, modprobe, module_fact, rmmod, run

pytestmark = pytest.mark.usefixtures("guest_kernel")

GAUDI = ("habanalabs", "habanalabs_cn", "habanalabs_ib", "habanalabs_en")
CONFLICTING = "uio"
"""A module of the guest's own kernel tree, which the stand-in cannot be loaded beside."""

TOOLS = {
    "hl-smi": "0, 0000:00:01.0, HL-225",
    "furiosa-smi": '[{"device": "npu0", "liveness": "alive", "pe_utilizations": [{"pe_occupancy": false}]}]',
}
OLD, NEW = "1.2.92", "2.0.1"


class KernelLog:
    """What the stand-ins write to the kernel log from now on."""

    def __init__(self) -> None:
        self._file = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self._file, 0, os.SEEK_END)

    def lines(self) -> list[str]:
        """What came since the last look, as `module version verb`."""
        found = list[str]()
        while True:
            try:
                record = os.read(self._file, 8192).decode(errors="replace")
            except BlockingIOError:
                return found
            _, is_ours, text = record.partition("stand-in: ")
            if is_ours:
                found.append(text.splitlines()[0])

    def close(self) -> None:
        os.close(self._file)


@pytest.fixture
def kernel_log() -> Iterator[KernelLog]:
    log = KernelLog()
    yield log
    log.close()


@pytest.fixture
def conflicting() -> Iterator[str]:
    assert modprobe(Path("/"), CONFLICTING).status == 0
    yield CONFLICTING
    if is_loaded(CONFLICTING):
        assert rmmod(CONFLICTING).status == 0


class Vendor:
    def __init__(self, roots: DriverRoots, folder: Path, own: Path, tool: str) -> None:
        self._roots, self._folder, self._run, self._tool = roots, folder, own, tool

    def root(self, variant: str) -> Path:
        """The driver root with the vendor's tool in it."""
        root = self._folder / variant
        if not root.exists():
            shutil.copytree(self._roots[variant], root)
            tool = root / "usr/bin" / self._tool
            tool.parent.mkdir(parents=True)
            tool.write_text(f"#!/bin/sh\ncat <<'END'\n{TOOLS[self._tool]}\nEND\n")
            tool.chmod(0o755)
        return root

    def installed(self) -> None:
        self._run.mkdir(exist_ok=True)
        (self._run / f"{self._run.name}-driver.state").write_text("old-digest\n")
        note = {"schema": 1, "bootId": boot_id(), "root": str(self.root("vendors-v1")), "version": OLD}
        (self._run / "driver-manager.json").write_text(json.dumps(note))

    def digest(self) -> str:
        return (self._run / f"{self._run.name}-driver.state").read_text().strip()


@pytest.fixture
def gaudi(roots: DriverRoots, tmp_path: Path) -> Iterator[Vendor]:
    yield from _vendor(Vendor(roots, tmp_path / "gaudi", Path("/run/habana"), "hl-smi"), Path("/run/habana"))


@pytest.fixture
def furiosa(roots: DriverRoots, tmp_path: Path) -> Iterator[Vendor]:
    yield from _vendor(Vendor(roots, tmp_path / "furiosa", Path("/run/furiosa"), "furiosa-smi"), Path("/run/furiosa"))


def _vendor(vendor: Vendor, own: Path) -> Iterator[Vendor]:
    vendor.installed()
    yield vendor
    shutil.rmtree(own)


def loaded_in_order(*names: str) -> list[str]:
    """Those of `names` that are loaded; /proc/modules has the newest first."""
    rows = [line.split()[0] for line in Path("/proc/modules").read_text().splitlines()]
    return [name for name in reversed(rows) if name in names]


def load_with_a_parameter(gaudi: Vendor) -> None:
    """The old driver, with one of its parameters as a user has set it."""
    for name in GAUDI:
        options = ("timeout_locked=5",) if name == "habanalabs" else ()
        assert run("modprobe", "-d", gaudi.root("vendors-v1"), name, *options).status == 0


def assert_released(command: Command) -> None:
    """No journal and no cordon is left on the node."""
    node = command.node.read()
    assert not [key for key in node["metadata"].get("annotations", {}) if key.endswith(".journal")]
    assert "unschedulable" not in node["spec"]


def test_modules_that_only_the_profile_orders_are_swapped_in_that_order_and_keep_a_parameter(
    command: Command, gaudi: Vendor, kernel_log: KernelLog
) -> None:
    assert modprobe(gaudi.root("vendors-v1"), "habanalabs_cn").status != 0, "else the order does not matter"
    load_with_a_parameter(gaudi)
    assert kernel_log.lines() == [f"{name} {OLD} loaded" for name in GAUDI]
    by_vendor = command.by_profile("gaudi", 'keep_parameters = ["habanalabs.timeout_locked"]\n')
    done = by_vendor.reconcile(gaudi.root("vendors-v2"))
    assert done.code == 0, done.err
    assert kernel_log.lines() == [
        *(f"{name} {OLD} unloaded" for name in reversed(GAUDI)),
        *(f"{name} {NEW} loaded" for name in GAUDI),
    ]
    assert loaded_in_order(*GAUDI) == list(GAUDI)
    assert {module_fact(name, "version") for name in GAUDI} == {NEW}
    assert module_fact("habanalabs", "parameters/timeout_locked") == "5"
    assert Path("/dev/accel/accel0").is_char_device()
    assert gaudi.digest() == "new-digest"
    assert "not probed" not in done.err
    assert_released(command)


@pytest.mark.shares(3)
def test_where_one_of_them_does_not_load_all_of_the_old_driver_come_back_in_order_with_the_parameter(
    command: Command, gaudi: Vendor, kernel_log: KernelLog
) -> None:
    load_with_a_parameter(gaudi)
    kernel_log.lines()
    by_vendor = command.by_profile("gaudi", 'keep_parameters = ["habanalabs.timeout_locked"]\n')
    failed = by_vendor.reconcile(gaudi.root("vendors-bad-init"))
    assert failed.code == 5, failed.err
    assert f"the old driver {OLD} is loaded again" in failed.err
    assert kernel_log.lines() == [
        *(f"{name} {OLD} unloaded" for name in reversed(GAUDI)),
        f"habanalabs {NEW} loaded",
        f"habanalabs {NEW} unloaded",
        *(f"{name} {OLD} loaded" for name in GAUDI),
    ]
    assert module_fact("habanalabs", "parameters/timeout_locked") == "5"
    assert gaudi.digest() == "old-digest"
    assert_released(command)


REMOVABLE = f'conflicting_removable = ["{CONFLICTING}"]\n'


@pytest.mark.shares(3)
def test_a_conflicting_module_goes_for_the_driver_and_stays_away_while_that_is_loaded(
    command: Command, furiosa: Vendor, kernel_log: KernelLog, conflicting: str
) -> None:
    assert modprobe(furiosa.root("vendors-v2"), "furiosa_rngd").status != 0, "else nothing has to go"
    done = command.by_profile("furiosa", REMOVABLE).reconcile(furiosa.root("vendors-v2"))
    assert done.code == 0, done.err
    assert f"conflicting module {conflicting} is unloaded" in done.err
    assert not is_loaded(conflicting)
    assert kernel_log.lines() == [f"furiosa_rngd {NEW} loaded"]
    assert Path("/dev/rngd/npu0mgmt").is_char_device()
    assert "not probed" not in done.err
    assert_released(command)


@pytest.mark.shares(3)
def test_where_no_driver_comes_of_it_the_conflicting_module_comes_back(
    command: Command, furiosa: Vendor, kernel_log: KernelLog, conflicting: str
) -> None:
    failed = command.by_profile("furiosa", REMOVABLE).reconcile(furiosa.root("vendors-bad-init"))
    assert failed.code == 5, failed.err
    assert f"{conflicting} loaded again" in failed.err
    assert is_loaded(conflicting)
    assert not is_loaded("furiosa_rngd")
    assert kernel_log.lines() == []
