"""What a run that took the node has to undo on the host: a file there that only root can write.

Owns its JSON form. The Node's journal names the record of its run. It
lies under /run and is bound to its boot: a boot starts the services, and loads and binds everything anew. Pure.
"""

from __future__ import annotations

from typing import Any

from driver_manager.domain import bindings
from driver_manager.domain.bindings import Binding
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.journal import Journal, OldDriver, driver_in, driver_to_json
from driver_manager.domain.wire import Form


class HostRecord(Frozen):
    """What the run `run` of the boot `boot_id` has to undo: the fields of the same names in a journal."""

    boot_id: str
    run: str
    services: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    driver: OldDriver | None = None
    devices: tuple[Binding, ...] = ()


class HostRecordUnreadable(ConfigError):
    """The file is no record that this version can act on."""


FORM = Form(
    "the host's record of a run",
    HostRecordUnreadable,
    "Remove the file; the next run then restores the labels and the cordon only.",
)


def of(journal: Journal) -> HostRecord:
    """The record that belongs to `journal`."""
    return HostRecord(
        journal.boot_id, journal.record, journal.services, journal.removed, journal.driver, journal.devices
    )


def encode(record: HostRecord) -> str:
    """The file: one line of JSON."""
    body: dict[str, Any] = {
        "bootId": record.boot_id,
        "run": record.run,
        "services": list(record.services),
        "removed": list(record.removed),
        "driver": driver_to_json(record.driver) if record.driver is not None else None,
        "devices": bindings.to_json(record.devices),
    }
    return FORM.write(body) + "\n"


def decode(text: str) -> HostRecord:
    """The record that `encode` wrote. Raises HostRecordUnreadable for garbage and for newer versions."""
    body = FORM.read(text)
    return HostRecord(
        boot_id=body.text("bootId"),
        run=body.text("run"),
        services=body.texts("services"),
        removed=body.texts("removed"),
        driver=None if body.is_null("driver") else driver_in(body.fields("driver")),
        devices=bindings.read_in(body),
    )


def noted(text: str, boot_id: str, run: str) -> HostRecord | None:
    """The record in `text` where it is that of this run and boot: anything else is none."""
    try:
        found = decode(text) if text else None
    except HostRecordUnreadable:
        return None
    return found if found is not None and (found.boot_id, found.run) == (boot_id, run) else None
