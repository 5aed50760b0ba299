"""A guest's life: what it boots, its processes and its end. `run()` is one boot with one list of tests.

As a program: `python -m tests.support.kernel.guest --check` says what the machine lacks, `--prepare` fills the cache.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from tests.support import cache
from tests.support.kernel import driver_roots, initramfs, kernel_image, results, tools
from tests.support.kernel.tools import CHECKOUT, SOURCES, KernelTierError
from tests.support.tiers import answer


def mount_points(needed: Iterable[Path]) -> list[Path]:
    """`/` and every further mount point that leads to one of the `needed` paths, outermost first."""
    found = {Path("/")}
    for path in needed:
        resolved = path.resolve()
        found.update(folder for folder in (resolved, *resolved.parents) if os.path.ismount(folder))
    return sorted(found, key=lambda folder: len(folder.parts))


def read_only_view(view: Path, needed: Iterable[Path], argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` where `view` is `/`, read-only, with the mounts that hold the `needed` paths.

    A plain bind leaves out what is mounted below, so /proc, /sys and /dev of the host are not in the view.
    """
    script = ["set -e"]
    for point in mount_points(needed):
        target = shlex.quote(str(view / point.relative_to("/")))
        script.append(f"mount --bind {shlex.quote(str(point))} {target}")
        script.append(f"mount -o remount,bind,ro {target}")
    script.append(f"exec {shlex.join(argv)}")
    return ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", "\n".join(script)]


LIMIT_S = 300.0
"""Nothing at all on the console, the results port or the disk for so long: no test takes a third of it anywhere."""

LOOKS_EVERY_S = 1.0


class Process(Protocol):
    """What is asked of a process: its exit status, or subprocess.TimeoutExpired."""

    def wait(self, timeout: float) -> int:
        """The exit status, once it has ended."""


def wait_while_changing(
    process: Process,
    progress: Callable[[], object],
    limit_s: float = LIMIT_S,
    now: Callable[[], float] = time.monotonic,
) -> int | None:
    """The exit status of `process`; None once `progress()` has returned the same for `limit_s` seconds.

    The process is left as it is then.
    """
    last, since_s = progress(), now()
    while True:
        try:
            return process.wait(LOOKS_EVERY_S)
        except subprocess.TimeoutExpired:
            heard = progress()
        if heard != last:
            last, since_s = heard, now()
        elif now() - since_s > limit_s:
            return None


HOST_ADDRESS = "10.0.2.2"  # where the guest finds the host's 127.0.0.1 (qemu's user network)
MEMORY_MIB = 3072  # a node keeps its images in it; the host gives only what is used
RESTARTING = "reboot: Restarting system"  # the kernel's last words before it resets the machine (kernel/reboot.c)
DISK_TAG = "disk"  # what the guest mounts at /disk and keeps over a reboot
DRIVER_ROOTS_VARIABLE = "GUEST_DRIVER_ROOTS"
# The kernel measures the TSC's rate while it boots, and on a busy machine wrongly: its seconds were 22 times too short.
# The machine states the HPET's rate.
# Nor is the timer's interrupt tried out: the kernel counts ticks in a loop, of which a machine that is starved for that
# moment shows none, and panics ("timer doesn't work").
CLOCK = "tsc=reliable clocksource=hpet no_timer_check"
# An emulated IOMMU and devices that can be given to virtual machines: two in groups of their own, and one that shares
# its group with a virtio device, as both are behind a bridge to conventional PCI. See guest_vfio.py.
DEVICES = (
    "intel-iommu",
    "edu,addr=10",
    "edu,addr=11",
    "pcie-pci-bridge,id=conventional,addr=12",
    "edu,bus=conventional,addr=1",
    "virtio-rng-pci,bus=conventional,addr=2",
)
COMMAND_LINE = f"console=ttyS0 quiet nokaslr {CLOCK} mitigations=off panic=-1 driver_manager.guest=1"


@dataclass(frozen=True)
class Prepared:
    image: kernel_image.KernelImage
    initramfs: Path
    drivers: Path


@dataclass(frozen=True)
class GuestReport:
    """What came out of a run: cases by node id, the console's output, and the files left on its disk."""

    cases: dict[str, results.GuestCase]
    console: str
    disk: dict[str, str] = field(default_factory=dict)


def prepare() -> Prepared:
    """Kernel, modules and initramfs from the cache, made where they are not there. Raises TierError."""
    image = kernel_image.prepare()
    return Prepared(image, initramfs.prepare(image), driver_roots.prepare(image))


def run(node_ids: Sequence[str], environment: Mapping[str, str], needed: Sequence[Path] = ()) -> GuestReport:
    """One boot that runs the tests `node_ids`, with `environment` added to theirs, and one more if they ask for it.

    The guest sees the `needed` files of the host, too, should they be on a mount of their own.
    Raises KernelTierError, with the end of the console, where the guest ends without its end marker, or falls silent.
    """
    prepared = prepare()
    with _run_folder() as folder:
        _write_orders(folder, prepared, node_ids, environment)
        disk = folder / DISK_TAG
        disk.mkdir()
        outcome, console = _boot(folder, prepared, needed)
        sent = (folder / "results").read_bytes()
        if (disk / "asked.json").exists() and RESTARTING in console:
            # The machine has reset itself, at which qemu ends: it gets its power back, and its disk.
            outcome, second = _boot(folder, prepared, needed)
            console += second
        files_log = (folder / "view.log").read_text(errors="replace")
        left = {path.name: path.read_text(errors="replace") for path in disk.iterdir() if path.is_file()}
    try:
        cases = results.parsed(sent)
    except KernelTierError as error:
        message = f"{error}\n{outcome}\nconsole:\n{tools.tail(console, 90)}\nvirtiofsd:\n{tools.tail(files_log, 10)}"
        raise KernelTierError(message) from error
    return GuestReport(cases, console, left)


def _boot(folder: Path, prepared: Prepared, needed: Sequence[Path]) -> tuple[str, str]:
    """One life of the machine, from power on to power off or reset: how it ended, and its console."""
    view, roots = folder / "view", [CHECKOUT, cache.folder(), Path(sys.prefix), Path(sys.base_prefix), *needed]
    view.mkdir(exist_ok=True)
    with (
        _served(view, "cache=always", lambda serve: read_only_view(view, roots, serve)) as files,
        _served(folder / DISK_TAG, "cache=none", list) as disk,  # which the guest may write and keeps over a reboot
    ):
        outcome = _qemu(folder, prepared, {"host": files, DISK_TAG: disk})
    return outcome, (folder / "console").read_text(errors="replace")


@contextlib.contextmanager
def _run_folder() -> Iterator[Path]:
    """A folder for one boot, private because the environment may hold credentials. The guest sees it at the same path.

    Below the checkout and not in /tmp, which may be a mount of its own that the guest does not see.
    """
    runs = CHECKOUT / "build/kernel"
    if any(character.isspace() or character == '"' for character in str(runs)):
        raise KernelTierError(f"the path is part of a kernel command line and may hold no space or quote: {runs}")
    runs.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=runs))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _write_orders(folder: Path, prepared: Prepared, node_ids: Sequence[str], environment: Mapping[str, str]) -> None:
    (folder / "node_ids").write_text("".join(f"{node_id}\n" for node_id in node_ids))
    exported = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), tools.SEARCH_PATH]),
        "HOME": "/tmp",
        "PYTHONPATH": str(CHECKOUT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # each plugin costs seconds under emulation, and none is used
        DRIVER_ROOTS_VARIABLE: str(prepared.drivers),
        **environment,
    }
    (folder / "environment").write_text(_assignments(exported, "export "))
    variables = {
        "BUSYBOX": shutil.which("busybox", path=tools.SEARCH_PATH) or "/bin/busybox",
        "RELEASE": prepared.image.release,
        "KERNEL_MODULES": str(prepared.image.modules),
        "GUEST_ENVIRONMENT": str(folder / "environment"),
        "PYTHON": sys.executable,
        "CHECKOUT": str(CHECKOUT),
        "NODE_IDS": str(folder / "node_ids"),
    }
    (folder / "init.sh").write_text(_assignments(variables) + (SOURCES / "guest_init.sh").read_text())


def _assignments(variables: Mapping[str, str], prefix: str = "") -> str:
    return "".join(f"{prefix}{name}={shlex.quote(value)}\n" for name, value in variables.items())


@contextlib.contextmanager
def _served(source: Path, cache: str, seen: Callable[[list[str]], list[str]]) -> Iterator[Path]:
    """The socket on which `source` is served, while the context lasts; `seen` changes the command that serves it."""
    binary = tools.find_virtiofsd()
    if binary is None:
        raise KernelTierError("virtiofsd is not installed")
    # A socket's path may have 107 bytes, and a checkout can lie deeper than that.
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as listening:
        path = Path(short) / "virtiofsd"
        # Listening before the daemon starts: qemu's connect then needs no waiting for a socket to appear.
        listening.bind(str(path))
        listening.listen(1)
        options = f"source={source},{cache},sandbox=chroot"
        argv = seen([str(binary), f"--fd={listening.fileno()}", "-o", options])
        with source.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(argv, pass_fds=[listening.fileno()], stdout=log, stderr=log)
        try:
            yield path
        finally:
            _stop(process)


def _qemu(folder: Path, prepared: Prepared, shared: Mapping[str, Path]) -> str:
    """How qemu ended, in words; the console and the results are files in `folder`.

    It ends with this process too, so nothing inside has to bound the guest.
    """
    for name in ("console", "results"):
        (folder / name).write_bytes(b"")
    argv = ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"]
    argv += ["-accel", "tcg", "-machine", "q35", "-cpu", "Nehalem-v1", "-smp", "1"]
    argv += [word for device in DEVICES for word in ("-device", device)]
    argv += ["-m", f"{MEMORY_MIB}M", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]
    argv += ["-object", f"memory-backend-memfd,id=memory,size={MEMORY_MIB}M,share=on", "-numa", "node,memdev=memory"]
    for tag, path in shared.items():
        argv += ["-chardev", f"socket,id={tag},path={path}", "-device", f"vhost-user-fs-pci,chardev={tag},tag={tag}"]
    argv += ["-netdev", "user,id=network", "-device", "virtio-net-pci,netdev=network,romfile="]
    argv += ["-serial", f"file:{folder / 'console'}", "-serial", f"file:{folder / 'results'}"]
    argv += ["-kernel", str(prepared.image.vmlinuz), "-initrd", str(prepared.initramfs)]
    argv += ["-append", f"{COMMAND_LINE} driver_manager.run={folder}"]
    with (folder / "qemu").open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            status = wait_while_changing(process, lambda: _progress(folder))
        finally:
            _stop(process)
    if status is None:
        return f"the guest wrote nothing for {LIMIT_S:.0f} s and was ended"
    return f"qemu exited {status}: {(folder / 'qemu').read_text(errors='replace').strip()}"


def _progress(folder: Path) -> tuple[int, ...]:
    """What grows or changes while the guest lives: its console, its results, its disk."""
    disk = folder / DISK_TAG
    return (
        *((folder / name).stat().st_size for name in ("console", "results")),
        *(path.stat().st_mtime_ns for path in (disk, *disk.iterdir())),
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait(60)


# In the guest this fixture checks the kernel; on the host only replayed cases get past it.
GUARD = "guest_kernel"


class ReplayedCase(pytest.Function):
    """A guest test on the host: it runs nothing itself and reports the guest's result of it."""

    line = 0  # of the guest test in its file, counted from 0

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Where it stands: the guest test's file, not the replaying function's."""
        return self.path, self.line, self.name


class GuestModule(pytest.Module):
    """A file of guest tests: collected as usual for their names, but yielding replayed cases."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """One replayed case per test function, with its markers, which decide whether a run takes it.

        Raises CollectError for anything but a function, and for one that could run on a host (see guest_kernel).
        """
        for found in super().collect():
            if not isinstance(found, pytest.Function):
                raise self.CollectError(f"guest tests are plain functions, and {found.name} is none")
            if GUARD not in found.fixturenames:
                raise self.CollectError(
                    f"{found.name} does not use the fixture {GUARD}: nothing keeps it off a real host"
                )
            case: ReplayedCase = ReplayedCase.from_parent(self, name=found.name, callobj=replaying(found.nodeid))
            case.own_markers = list(found.own_markers)
            case.line = found.reportinfo()[1] or 0
            yield case


def replaying(node_id: str) -> Callable[[GuestReport], None]:
    """The test function that stands in for a guest test: passes, fails or skips as the guest's case did."""

    def replay(guest_report: GuestReport) -> None:
        case = guest_report.cases.get(node_id)
        if case is None:
            output = tools.tail(guest_report.console)
            pytest.fail(f"the guest did not report this test; console:\n{output}", pytrace=False)
        if case.failure:
            pytest.fail(f"in the guest, after {case.duration_s:.1f} s:\n{case.failure}", pytrace=False)
        if case.skipped:
            pytest.skip(f"in the guest: {case.skipped}")

    return replay


if __name__ == "__main__":
    sys.exit(answer("kernel", tools.missing(), lambda: f"prepared {prepare().image.release} in {cache.folder()}"))
