"""Targets that are files of a host: sysfs and procfs, the driver's marks, module lists, module files, tool output."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

import psutil

from driver_manager.adapters.host import modules as module_tree
from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.health import HostMarks
from driver_manager.adapters.host.holders import bound_to, find_holders
from driver_manager.adapters.host.modules import ModuleTrees, exported_symbols, needed_symbols
from driver_manager.adapters.host.notes import RebootFiles
from driver_manager.adapters.host.pci import served_devices
from driver_manager.adapters.host.system import read_host
from driver_manager.adapters.process.tools import Result, process_lives
from driver_manager.domain.errors import ManagerError
from driver_manager.domain.health.watch import Surroundings
from driver_manager.domain.host import DriverSource, Holder, Host
from driver_manager.domain.journal import OldDriver, Owner
from driver_manager.domain.observation import Policy, Situation
from driver_manager.domain.profile import LoadScope, Modules
from driver_manager.domain.reboot.state import Record, Snapshot
from driver_manager.domain.swap.planner import plan
from tests.assurance.fuzz.documents import MOUNTS, golden
from tests.assurance.fuzz.target import Form, Target, assert_conforms, parts, parts_of, text_of
from tests.support.fakes.builders import ASCEND, PROFILE, journal, observation
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.elf_files import MODULE

KERNEL = "6.1.0-fuzz"
TREE = f"lib/modules/{KERNEL}"
DRIVER_TREE = f"run/rbln/driver/{TREE}"
POD_CGROUP = f"0::/kubepods/burstable/pod0b0d7f0e-1111-4222-8333-000000000002/{'c0ffee' * 10}abcd\n"
STAT = "4711 (python3) S 1 " + "1 " * 17 + "5000 1000 10" + " 0" * 30 + "\n"
MAPS = "7f00-7f01 rw-s 00000000 00:05 1234                       /dev/rbln0\n"

KERNELS_FILES: dict[str, bytes] = {
    "proc/sys/kernel/random/boot_id": b"boot-1\n",
    "proc/sys/kernel/osrelease": KERNEL.encode() + b"\n",
    "proc/1/mountinfo": MOUNTS,
    "proc/uptime": b"86400.00 86400.00\n",
    "proc/kallsyms": b"0 T printk\n0 D data\n",
    "proc/stat": b"cpu 0\nbtime 1700000000\n",
    "proc/4711/stat": STAT.encode(),
    "proc/4711/status": b"Name:\tpython3\nNSpid:\t4711\t7\n",
    "proc/4711/cgroup": POD_CGROUP.encode(),
    "proc/4711/maps": MAPS.encode(),
    "proc/4711/mountinfo": MOUNTS,
    "sys/module/rebellions/initstate": b"live\n",
    "sys/module/rebellions/refcnt": b"1\n",
    "sys/module/rebellions/version": b"1.0\n",
    "sys/module/module/parameters/sig_enforce": b"N\n",
    "sys/kernel/security/lockdown": b"[none] integrity confidentiality\n",
    "sys/bus/pci/devices/0000:c1:00.0/vendor": b"0x1eff\n",
    "sys/bus/pci/devices/0000:c1:00.0/class": b"0x120000\n",
    "sys/bus/pci/devices/0000:c1:00.0/device": b"0x1220\n",
}
"""What the kernel writes: always files, with content as it likes."""

HOSTS_FILES: dict[str, bytes] = {
    "etc/machine-id": b"machine\n",
    "etc/hostname": b"node-1\n",
    "run/rbln/rbln-driver.state": b"f" * 64 + b"\n",
    "run/rbln/driver-manager.json": b'{"bootId":"boot-1","root":"/run/rbln/driver","version":"1.0"}\n',
    "run/rbln/health-watch.json": b"{}",
    "run/rbln/driver-manager.lock": b"",
    "run/rbln/validations/.driver-ctr-ready": b"",
    "var/lib/ascend/.reboot-required": golden("marker-v1-recovery.json")[0],
    "var/lib/ascend/.rebooter.json": golden("rebooter-v1-waiting.json")[0],
    f"{TREE}/modules.dep": b"kernel/net/veth.ko:\n",
    f"{TREE}/modules.symbols": b"alias symbol:printk veth\n",
    f"{DRIVER_TREE}/modules.dep": b"extra/rebellions.ko: extra/rebellions_core.ko\nextra/rebellions_core.ko:\n",
    f"{DRIVER_TREE}/modules.symbols": b"alias symbol:core_open rebellions_core\n",
    f"{DRIVER_TREE}/extra/rebellions.ko": MODULE,
    f"{DRIVER_TREE}/extra/rebellions_core.ko": MODULE,
}
"""What others write: a file may as well be a folder (`#`), a link (`@`), a FIFO (`!`), or not there (`%`)."""

PLACES = (*KERNELS_FILES, *HOSTS_FILES)
TOOLS = len(PLACES) + 1
"""The part after the files: what every tool prints."""

MODINFO = b"version:        1.0\nvermagic:       6.1.0-fuzz SMP mod_unload\ndepends:        rebellions_core\n"
LINKS = ("/", "..", "../../../../..", "/etc", "/run/rbln", "loop", "/proc/1", "/dev/zero", "/absent")


class Tree:
    def __init__(self) -> None:
        self._top = Path(tempfile.mkdtemp(prefix="fuzz-"))
        atexit.register(shutil.rmtree, self._top, ignore_errors=True)
        self.root = self._top / "host"
        self.roots = HostRoots(self.root, self.root / "proc", self.root / "sys", self.root / "dev")
        self.modinfo = ""

    def lay_out(self, data: bytes) -> None:
        """The host that `data` describes: the usual one, with its parts in the places they name."""
        shutil.rmtree(self.root, ignore_errors=True)
        contents = {**KERNELS_FILES, **HOSTS_FILES}
        self.modinfo = MODINFO.decode()
        odd: dict[str, bytes] = {}
        for number, content in parts_of(data):
            if number >= TOOLS:
                self.modinfo = text_of(content)
            elif (place := PLACES[number - 1]) in KERNELS_FILES or content[:1] not in b"@!#%":
                contents[place] = content
            else:
                odd[place] = content
        for place in contents.keys() - odd.keys():
            self._put(place).write_bytes(contents[place])
        for place, content in odd.items():
            path = self._put(place)
            match content[:1]:
                case b"@":
                    path.symlink_to(LINKS[sum(content) % len(LINKS)])
                case b"!":
                    os.mkfifo(path)
                case b"#":
                    path.mkdir()
        for folder in ("dev", "proc/self", "proc/4711/fd", "sys/module/rebellions/holders"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        (self.root / "dev/rbln0").touch()
        (self.root / "proc/4711/fd/3").symlink_to("/dev/rbln0")

    def fingerprint(self) -> list[tuple[str, int, int, int]]:
        found = []
        for folder, folders, files in os.walk(self._top):
            for name in (*folders, *files):
                path = os.path.join(folder, name)  # noqa: PTH118  # thousands of times a second
                status = os.lstat(path)
                # A folder's own time changes with a lock file that comes and goes; its names do not.
                changed = 0 if name in folders else status.st_mtime_ns
                found.append((path, status.st_mode, status.st_size, changed))
        return sorted(found)

    def _put(self, place: str) -> Path:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


@cache
def _tree() -> Tree:
    """The tree of this process."""
    return Tree()


@contextmanager
def laid_out(data: bytes, *made: str) -> Generator[Tree, None, None]:
    """The tree of this process as `data` describes it; it must be unchanged at the end, except for files `made`."""
    tree = _tree()
    tree.lay_out(data)
    before = tree.fingerprint()
    result = Result(0, tree.modinfo, "")
    try:
        with patch.object(module_tree, "run", lambda _argv: result):
            yield tree
    finally:
        there = {row[0] for row in before}
        for path in (tree.root / one.lstrip("/") for one in made):
            if str(path) not in there:
                path.unlink(missing_ok=True)
            if str(path.parent) not in there and path.parent.is_dir():
                path.parent.rmdir()
        after = tree.fingerprint()
        assert after == before, f"changed: {sorted(set(before) ^ set(after))[:4]}"


def read_whole_host(data: bytes) -> None:
    old = journal(driver=OldDriver("1.0", "/run/rbln/driver", ("rebellions",)))
    with laid_out(data) as tree:
        for profile in (PROFILE, ASCEND):
            found = read_host(tree.roots, profile, "", old, loads=True)
            assert_conforms(found, Host)
            plan(Situation.of(observation(host=found), PROFILE, Policy()))


def read_driver_tree(data: bytes) -> None:
    """A module tree as data, whatever the rest of the host is."""
    with laid_out(data) as tree:
        for scope in LoadScope:
            trees = ModuleTrees(tree.roots, KERNEL, Modules((), load=scope))
            assert_conforms(trees.source("/run/rbln/driver", ("rebellions",)), DriverSource)
            trees.find("/", "rebellions")


def read_processes(data: bytes) -> None:
    with laid_out(data) as tree, patch.object(psutil, "PROCFS_PATH", str(tree.roots.proc)):
        for found in find_holders(tree.roots.proc, tree.roots.dev, PROFILE.paths.device_nodes):
            assert_conforms(found, Holder)
            assert found.process.isprintable()
        assert_conforms(bound_to(tree.roots.proc, frozenset({"0:31"})), tuple[tuple[int, str], ...])
        process_lives(Owner(pid=7, start_ticks=5000, pid_namespace=1), tree.roots.proc)
        served_devices(tree.roots, PROFILE)


def read_marks(data: bytes) -> None:
    """What health-watch and the rebooter look at, for ever."""
    with laid_out(data, PROFILE.paths.work_lock) as tree:
        files = RebootFiles(tree.roots, ASCEND.paths.reboot_marker, ASCEND.paths.rebooter_record)
        for read, kind in ((files.look, Snapshot), (files.record, Record)):
            with contextlib.suppress(ManagerError):
                assert_conforms(read(), kind)
        marks = HostMarks(tree.roots, PROFILE, FakeClock())
        assert_conforms(marks.recall(), str)
        with marks.alone() as seen:
            assert_conforms(seen, Surroundings)


def read_module_file(data: bytes) -> None:
    endings = (".ko", ".ko.gz", ".ko.xz")
    path = _tree().root.parent / f"module{endings[(data[:1] or bytes(1))[0] % len(endings)]}"
    path.write_bytes(data[1:])
    for names in (needed_symbols(path), exported_symbols(path)):
        if names is not None:
            assert_conforms(names, frozenset[str])


def part(place: str, content: bytes | str) -> tuple[int, bytes | str]:
    return PLACES.index(place) + 1, content


_TEXTS = {place: content for place, content in {**KERNELS_FILES, **HOSTS_FILES}.items() if b"\0" not in content}
USUAL = parts(*(part(place, content) for place, content in _TEXTS.items()))
_SWAPPED = [place for place in HOSTS_FILES if place.endswith(("dep", "state", "ko"))]
ODD = tuple(parts(part(place, kind)) for kind in ("@", "!", "#", "%") for place in _SWAPPED)

SEEDS, REFUSED = (USUAL, parts((TOOLS, MODINFO)), *ODD), (ManagerError, OSError)
TARGETS = (
    Target("host", read_whole_host, SEEDS, Form.PARTS, runs=200),
    Target("driver-tree", read_driver_tree, SEEDS, Form.PARTS, allowed=REFUSED, runs=300),
    Target("processes", read_processes, (USUAL,), Form.PARTS, runs=300),
    Target("marks", read_marks, (USUAL, parts(part("var/lib/ascend/.reboot-required", "!"))), Form.PARTS, runs=300),
    Target("module-file", read_module_file, (b"\0" + MODULE,), Form.BYTES, allowed=(), runs=2_000),
)
