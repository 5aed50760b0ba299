"""The vendor's probe: a tool of the driver root, run from this container."""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.adapters.host.files import OWN_ROOT, HostFiles, HostRoots, resolve
from driver_manager.adapters.host.pci import served_devices
from driver_manager.adapters.process.supervisor import OUT_BYTES, StillStuckError, Supervisor
from driver_manager.domain.health.parsers import parse
from driver_manager.domain.host import DriverSource, Health, ProbeResult
from driver_manager.domain.journal import Owner
from driver_manager.domain.profile import Probe, Profile

# Run a program of another root file system with the loader and the libraries of that one.
#
# A driver root usually is the root file system of another distribution. With our C library its programs fail in ways
# that show nothing about the device (`version GLIBC_2.38 not found`, exit status 1 or 127).
#
# The loader and not a chroot, so that the program sees our /dev, /proc and /sys: a driver root need not have them, and
# a tool without its device node prints "no device", as with a dead driver. A tool that starts programs or opens
# libraries by absolute paths does not work this way: it cannot be run, which is unknown and not unhealthy.
#
# Sources: elf(5), ld.so(8), execve(2) (interpreter scripts).

LIBRARY_DIRS = (
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "usr/lib64",
    "lib",
    "usr/lib",
    "usr/local/lib",
)
"""Library folders of distributions. The root's ld.so.cache has paths that do not exist here."""

PROGRAM_DIRS = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")

HEAD_BYTES = 256
"""The part of a script's first line that the kernel reads (execve(2), BINPRM_BUF_SIZE)."""

MAX_INTERPRETER_BYTES = 4096
MAX_PROGRAM_HEADERS = 128
_ELF64_LITTLE = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<QQQIHHH")
"""e_entry, e_phoff, e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum; at byte 24."""
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_PT_INTERP = 3
_ENV = "env"


class Interpreted(Struct, frozen=True):
    """The `#!` words or the ELF loader of a program, as paths of its root; both empty if it needs or shows none."""

    loader: str = ""
    script: tuple[str, ...] = ()


def interpreted(program: Path) -> Interpreted:
    """The interpreter of `program`, from a bounded part of the file."""
    try:
        descriptor = os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return Interpreted()
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return Interpreted()
        head = os.pread(descriptor, HEAD_BYTES, 0)
        if head.startswith(b"#!"):
            return Interpreted(script=_words(head))
        return Interpreted(loader=_loader(descriptor, head) if head.startswith(_ELF64_LITTLE) else "")
    except (OSError, struct.error, OverflowError, UnicodeError):
        return Interpreted()
    finally:
        os.close(descriptor)


def _words(head: bytes) -> tuple[str, ...]:
    """The interpreter, and its one argument if it has any."""
    line = head[2:].split(b"\n", 1)[0].decode()
    return tuple(word.strip() for word in line.strip().split(None, 1))


def _loader(descriptor: int, head: bytes) -> str:
    """The content of PT_INTERP, "" for a static program."""
    _, offset, _, _, _, size, count = _HEADER.unpack_from(head, 24)
    if size != _PROGRAM_HEADER.size or count > MAX_PROGRAM_HEADERS:
        return ""
    table = os.pread(descriptor, size * count, offset)
    for kind, _, start, _, _, length, _, _ in _PROGRAM_HEADER.iter_unpack(table[: len(table) // size * size]):
        if kind == _PT_INTERP and length <= MAX_INTERPRETER_BYTES:
            return os.pread(descriptor, length, start).rstrip(b"\0").decode()
    return ""


def inside(root: Path, path: str, is_it: Callable[[Path], bool] = Path.is_file) -> Path | None:
    """The file `path` of the root file system `root`, with links resolved inside it; None if there is none."""
    try:
        found = resolve(root, path)
        return found if is_it(found) else None
    except (OSError, ValueError):
        return None


def foreign_command(program: Path, roots: Iterable[Path], libraries: Iterable[Path] = ()) -> tuple[str, ...]:
    """The command line that runs `program`, without its arguments.

    The first of `roots` that has its interpreter provides it. If none has it, or it is our own root, the kernel finds
    the interpreter. `libraries` are searched before the root's.
    """
    found = interpreted(program)
    if found.script:
        return _script(program, found.script, tuple(roots), tuple(libraries))
    for root in roots if found.loader else ():
        loader = inside(root, found.loader)
        if loader is not None:
            return (*_by_loader(root, loader, libraries), str(program))
    return (str(program),)


def _script(
    program: Path, words: tuple[str, ...], roots: tuple[Path, ...], libraries: tuple[Path, ...]
) -> tuple[str, ...]:
    names: tuple[str, ...] = (words[0],)
    rest = words[1:]
    if words[0].rpartition("/")[2] == _ENV and len(words) > 1 and not words[1].startswith("-"):
        names, rest = tuple(f"/{folder}/{words[1]}" for folder in PROGRAM_DIRS), ()
    for root in roots:
        if root == OWN_ROOT:
            break
        interpreter = next((path for name in names if (path := inside(root, name)) is not None), None)
        if interpreter is not None and not interpreted(interpreter).script:
            return (*foreign_command(interpreter, roots, libraries), *rest, str(program))
    return (str(program),)


def _by_loader(root: Path, loader: Path, libraries: Iterable[Path]) -> tuple[str, ...]:
    """The words that run a program with the loader of `root`; its folder has the C library; none for our root."""
    if root == OWN_ROOT:
        return ()
    usual = filter(None, (inside(root, folder, Path.is_dir) for folder in LIBRARY_DIRS))
    folders = dict.fromkeys(str(path) for path in (*libraries, *usual, loader.parent))
    return (str(loader), "--inhibit-cache", "--library-path", ":".join(folders))


# The profile's probe as a command.


class ProbeCommand(Struct, frozen=True):
    """A command; `env` is in addition to PATH and LC_ALL."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def probe_command(files: HostFiles, probe: Probe, root: str) -> ProbeCommand | None:
    """The command for `probe` in the driver root `root` (absolute on the host), None if its tool is not there.

    Its libraries are those of the driver root, or the host's if the driver root has no loader (a driver that is
    installed on the host).
    """
    tool = next((path for path in _tools(files, probe, root) if os.access(path, os.X_OK)), None)
    if tool is None:
        return None
    folders = [_find(files, root, folder) for folder in probe.library_dirs]
    words = foreign_command(tool, (files.path(root), files.root), folders)
    return ProbeCommand((*words, *probe.args), _environment(probe, folders))


def _find(files: HostFiles, root: str, path: str) -> Path:
    """A path in the root. An absolute link leads into the root if its target is there, else into the host."""
    within = resolve(files.path(root), path)
    return within if within.exists() else files.path(f"{root}/{path}")


def _tools(files: HostFiles, probe: Probe, root: str) -> Iterator[Path]:
    """The places of the probe's tool, of which any may be missing."""
    return (_find(files, root, f"{folder}/{probe.tool}") for folder in probe.search)


def _noexec_mount(files: HostFiles, probe: Probe, root: str) -> str:
    """The `noexec` mount of a tool that cannot be executed, or of the root if it has no tool; else "". Raises OSError.

    The tool and the root may be on different mounts.
    """
    tools = [tool for tool in _tools(files, probe, root) if tool.exists()]
    if any(os.access(tool, os.X_OK) for tool in tools):
        return ""
    paths = [f"/{tool.relative_to(files.root)}" for tool in tools] or [root]
    return next(filter(None, map(files.noexec_mount, paths)), "")


def with_noexec(files: HostFiles, probe: Probe | None, source: DriverSource) -> DriverSource:
    """`source` with the mount that keeps the probe's tool in it from being executed, if any."""
    if probe is not None and not source.problem:
        with contextlib.suppress(OSError):
            return replace(source, noexec=_noexec_mount(files, probe, source.root))
    return source


def why_no_tool(files: HostFiles, probe: Probe, root: str) -> str:
    """Why there is no `probe_command`. Raises OSError."""
    noexec = _noexec_mount(files, probe, root)
    return f"{probe.tool} {f'cannot be executed: {noexec} is mounted noexec' if noexec else f'is not in {root}'}"


def _environment(probe: Probe, folders: list[Path]) -> dict[str, str]:
    if probe.preload:
        libraries = [folder / probe.preload for folder in folders if (folder / probe.preload).exists()]
        return {"LD_PRELOAD": str(libraries[0])} if libraries else {}
    return {"LD_LIBRARY_PATH": ":".join(str(folder) for folder in folders)} if folders else {}


def with_devices(roots: HostRoots, profile: Profile, read: Callable[[tuple[str, ...]], ProbeResult]) -> ProbeResult:
    """What `read` makes of the functions that the driver serves, with all functions that are on the bus now."""
    devices = served_devices(roots, profile)
    return replace(read(devices.listed), served=devices.physical, on_bus=devices.on_bus)


OUTPUT_CHARS = 4096


class ToolProber:
    """See `driver_manager.core.ports_base.Prober`. `root` is the driver root, absolute on the host."""

    def __init__(
        self, roots: HostRoots, profile: Profile, root: str, supervisor: Supervisor, timeout_s: float | None = None
    ) -> None:
        self._roots = roots
        self._profile = profile
        self._root = root
        self._supervisor = supervisor
        self._timeout_s = timeout_s
        self._output = ""

    def sample(self, *, is_first: bool = False) -> ProbeResult:
        answer = self._answer(is_first=is_first)
        return with_devices(self._roots, self._profile, answer)

    def _answer(self, *, is_first: bool) -> Callable[[tuple[str, ...]], ProbeResult]:
        """Run the tool; the function that compares its answer with the functions to serve."""
        probe = self._profile.probe
        if probe is None:
            return _as_it_is(Health.UNKNOWN, "the profile has no probe")
        limit_s = self._timeout_s or probe.timeout_s
        if is_first or not stays_ready(self._roots.files(), probe, self._root):
            limit_s = max(limit_s, probe.settle_s)
        try:
            command = probe_command(self._roots.files(), probe, self._root)
            if command is None:
                return _as_it_is(Health.UNKNOWN, why_no_tool(self._roots.files(), probe, self._root))
            self._output = ""
            ran = self._supervisor.run(command.argv, command.env, limit_s)
            self._output = "\n".join((ran.out[-OUTPUT_CHARS:], ran.err[-OUTPUT_CHARS:])).strip()
        except StillStuckError as error:
            return _as_it_is(
                Health.UNHEALTHY, f"an earlier {probe.tool} (process {error.args[0]}) is stuck in the kernel"
            )
        except OSError as error:  # no process, descriptor or memory: not the device's fault
            return _as_it_is(Health.UNKNOWN, f"{probe.tool} cannot be run: {error.strerror}")
        if ran.is_cut:
            return _as_it_is(Health.UNKNOWN, f"{probe.tool} printed more than {OUT_BYTES // 1024} KiB")
        return lambda present: parse(probe, ran.status, ran.out, ran.last_line, present, err=ran.err)

    def output(self) -> str:
        return self._output

    def abandoned(self) -> int:
        return self._supervisor.abandoned

    def stuck(self) -> Owner | None:
        return self._supervisor.stuck

    def inherit(self, stuck: Owner) -> None:
        self._supervisor.inherit(stuck)


def _as_it_is(health: Health, reason: str) -> Callable[[tuple[str, ...]], ProbeResult]:
    return lambda _present: ProbeResult(health, reason)


def stays_ready(files: HostFiles, probe: Probe, root: str) -> bool:
    """True if the devices stay initialised between two probes, so that a probe is as fast as any other."""
    paths = probe.stays_ready_with
    return not paths or any(files.exists(path) or files.exists(f"{root.rstrip('/')}{path}") for path in paths)
