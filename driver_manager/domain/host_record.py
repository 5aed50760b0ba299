"""The host record: what a run that took the node must undo on the host, in a JSON file that only root can write.

The journal on the Node names the record of its run. The file is under /run and counts only in its boot: a boot starts
services, loads modules and binds devices again.

A record of this boot that no journal names is valid: the journal was lost, or the run was killed between the record
and the patch. When that run has ended, the next run undoes what the record has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Struct

from driver_manager.domain.journal import KMM_REMOVED, Journal, OldDriver, Owner, Refused
from driver_manager.domain.pci import Binding
from driver_manager.domain.text import several
from driver_manager.domain.wire import Form, Part, Unreadable, body_of, decimal


class HostRecord(Struct, frozen=True):
    """What the run `run` must undo, as in `Journal`; `refused` are an older version's fields, which runs ignore."""

    boot_id: str
    run: str
    services: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    driver: OldDriver | None = None
    devices: Annotated[tuple[Binding, ...], Part(is_optional=True)] = ()
    refused: Annotated[tuple[Refused, ...], Part(None)] = ()

    @property
    def owner(self) -> Owner | None:
        """The process of the run, None if `run` is not the name of a process."""
        boot_id, *words = self.run.split(":")
        match tuple(map(decimal, words)):
            case (int() as namespace, int() as pid, int() as start) if boot_id:
                return Owner(pid=pid, start_ticks=start, pid_namespace=namespace, boot_id=boot_id)
        return None

    def __str__(self) -> str:
        parts = [f"start {name}" for name in self.services]
        parts += [f"load {name}" for name in self.removed]
        parts += [f"restore {one.address}" for one in self.devices]
        if self.driver is not None:
            parts.append(f"go back to driver {self.driver.version or '(no version)'}")
        return several(parts) if parts else "nothing"


FORM = Form(
    "the host's record of a run",
    Unreadable,
    "Remove the file; the next run then restores the labels and the cordon only.",
)


def of(journal: Journal) -> HostRecord:
    return HostRecord(
        journal.boot_id, journal.record, journal.services, journal.removed, journal.driver, journal.devices
    )


def encode(record: HostRecord) -> str:
    return FORM.write(body_of(record)) + "\n"


def decode(text: str) -> HostRecord:
    """The record in `text`. Raises Unreadable for garbage and for newer versions."""
    body = FORM.read(text)
    return body.record(HostRecord, refused=(KMM_REMOVED,) if "kmm" in body else ())


def record_of_boot(text: str, boot_id: str) -> HostRecord | None:
    """The record in `text`; None for no text, for garbage and for another boot."""
    try:
        found = decode(text) if text else None
    except Unreadable:
        return None
    return found if found is not None and found.boot_id == boot_id else None


def parted(records: Iterable[HostRecord], run: str) -> tuple[HostRecord | None, tuple[HostRecord, ...]]:
    """The record of the run `run`, and the other records. The first is None if there is none, or if `run` is ""."""
    records = tuple(records)
    named = next((one for one in records if run and one.run == run), None)
    return named, tuple(one for one in records if one is not named)


def lost_driver(records: Iterable[HostRecord], *, is_loaded: bool, digest: str | None) -> OldDriver | None:
    """The first driver in `records`, which no journal names: the driver to restore. None if they have none.

    Also None if a driver is loaded and its `digest` is recorded: the run had not begun to replace it, or succeeded.
    """
    if is_loaded and digest is not None:
        return None
    return next((one.driver for one in records if one.driver is not None), None)
