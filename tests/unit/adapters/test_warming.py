"""What a load will read is read ahead, if it can be read; no run waits long for a disk that does not answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from driver_manager.adapters.host import modules as module_tree
from driver_manager.adapters.host import system as host_system
from driver_manager.adapters.host.slots import warm
from driver_manager.adapters.host.system import LinuxHost
from driver_manager.adapters.process.tools import Result
from driver_manager.domain.host import DriverSource, ModuleFile
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.deadlines import soon
from tests.support.fakes.host_folders import KERNEL, Tree

LONG_S = 60.0


def test_every_file_is_read_once_what_cannot_be_read_is_left_out_and_no_more_than_has_room(tmp_path: Path) -> None:
    for name, size in (("a.ko", 3_000_000), ("b.ko", 100), ("empty.ko", 0)):
        (tmp_path / name).write_bytes(b"x" * size)
    os.mkfifo(tmp_path / "pipe")
    names = ("b.ko", "a.ko", "b.ko", "absent.ko", "pipe", "empty.ko", ".")
    paths = [tmp_path / name for name in names]
    assert warm(lambda: paths, LONG_S) == 3_000_100
    assert warm(lambda: paths, LONG_S, most_bytes=130) == 130


def test_a_disk_that_does_not_answer_is_left_behind_and_nothing_that_goes_wrong_is_a_failure() -> None:
    def stuck() -> Iterator[Path]:
        time.sleep(LONG_S)
        yield Path("/")

    def broken() -> Iterable[Path]:
        raise ValueError("no such thing")

    began_s = time.monotonic()
    assert (warm(stuck, 0.2), warm(broken, LONG_S)) == (0, 0)
    assert time.monotonic() - began_s < LONG_S / 2


def test_tools_lists_modules_their_firmware_and_the_probe_are_what_a_load_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, root = Tree(tmp_path), "/opt/new"
    folder = f"{root}/lib/modules/{KERNEL}"
    tool = f"{root}/usr/bin/{PROFILE.probe.tool if PROFILE.probe else ''}"
    there = [f"{folder}/modules.dep", f"{folder}/core.ko", f"{folder}/rebellions.ko", tool]
    for path in (*there, "/lib/firmware/vendor/chip.bin.zst"):
        machine.put(path, "x")
    (tmp_path / tool.lstrip("/")).chmod(0o755)
    firmware = {f"{folder}/rebellions.ko": "firmware:       vendor/chip.bin\n"}

    def modinfo(argv: list[str]) -> Result:
        return Result(0, firmware.get(f"/{Path(argv[-1]).relative_to(tmp_path)}", ""), "")

    read: list[Path] = []

    def seen(paths: Callable[[], Iterable[Path]], _: float) -> int:
        read.extend(paths())
        return 7

    monkeypatch.setattr(module_tree, "run", modinfo)
    monkeypatch.setattr(host_system, "warm", seen)
    core, rebellions = (ModuleFile(name, f"{folder}/{name}.ko") for name in ("core", "rebellions"))
    source = DriverSource(root, (rebellions,), dependencies=(core,))
    assert LinuxHost(machine.roots, PROFILE, FakeClock()).warm(source, soon()) == 7
    wanted = {tmp_path / path.lstrip("/") for path in (*there, "/lib/firmware/vendor/chip.bin.zst")}
    assert wanted <= set(read)
