"""What the programs keep in files of the host, each with how it is written. Owns no assertion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.health import HostMarks
from driver_manager.adapters.host.notes import RebootFiles
from driver_manager.adapters.host.reboot import HostRebooter
from driver_manager.adapters.host.system import LinuxHost
from driver_manager.domain.host import Marker, RebootWish, encode_marker, encode_reboot_wish
from driver_manager.domain.reboot.state import Record
from driver_manager.profiles import builtin
from tests.support.fakes.clock import FakeClock

PROFILE = builtin()["ascend"]
PATHS = PROFILE.paths


@dataclass(frozen=True)
class HostDocument:
    """A file on the host, and the program's own way to write a text of about `length` characters into it."""

    path: str
    write: Callable[[HostRoots, str], None]


def roots_of(host: Path) -> HostRoots:
    return HostRoots(root=host, proc=host / "proc", sys=host / "sys", dev=host / "dev")


def _text(path: str, encode: Callable[[str], str] = str) -> HostDocument:
    return HostDocument(path, lambda roots, text: LinuxHost(roots, PROFILE, FakeClock()).write_text(path, encode(text)))


def _evidence(roots: HostRoots, text: str) -> None:
    HostRebooter(roots, PROFILE, FakeClock(), ("true",)).save_evidence("1", (text,))


def _record(roots: HostRoots, text: str) -> None:
    RebootFiles(roots, PATHS.reboot_marker, PATHS.rebooter_record).keep(Record(reason=text))


def _health(roots: HostRoots, text: str) -> None:
    HostMarks(roots, PROFILE, FakeClock()).remember(text)


DOCUMENTS = {
    "the state file": _text(PATHS.state_file),
    "the load record": _text(PATHS.load_record),
    "the reboot-required marker": _text(PATHS.reboot_marker, lambda text: encode_marker(Marker("upgrade", text))),
    "what a reboot was asked for": _text(
        PATHS.reboot_wish, lambda text: encode_reboot_wish(RebootWish("b", "n", text))
    ),
    "the rebooter's record": HostDocument(PATHS.rebooter_record, _record),
    "health-watch's record": HostDocument(PATHS.health_record, _health),
    "the evidence": HostDocument(f"{PATHS.reboot_evidence}/1.txt", _evidence),
}
