"""What the vendor's functions were bound to before a run gave them to virtual machines.

Owns the JSON form of the record on the host, which outlives the release of the node, and of the same in the journal.
The record lies under /run, so a boot ends it, as it ends the bindings. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.pci import PciFunction
from driver_manager.domain.wire import Fields, Form

MOST_VIRTUAL = 65_535


class Binding(Frozen):
    """A function as it was: its driver and its override ("" for none), and how many virtual functions it had."""

    address: str
    driver: str = ""
    override: str = ""
    virtual_count: int = 0


class BindingsUnreadable(ConfigError):
    """The file is no record that this version can act on."""


FORM = Form(
    "the record of original bindings",
    BindingsUnreadable,
    "Remove the file; devices are then returned by their driver_override alone.",
)


def of(function: PciFunction) -> Binding:
    """What `function` is bound to now."""
    return Binding(function.address, function.driver, function.override, function.virtual_count)


def merged(known: Iterable[Binding], more: Iterable[Binding]) -> tuple[Binding, ...]:
    """`known`, and of `more` what is not known yet: whoever noted a function first saw it as it was."""
    found = {one.address: one for one in more} | {one.address: one for one in known}
    return tuple(found[address] for address in sorted(found))


def encode(boot_id: str, bindings: Iterable[Binding]) -> str:
    """The record: one line of JSON."""
    return FORM.write({"bootId": boot_id, "devices": to_json(bindings)}) + "\n"


def decode(text: str) -> tuple[str, tuple[Binding, ...]]:
    """The boot and the bindings that `encode` wrote. Raises BindingsUnreadable for garbage and for newer versions."""
    body = FORM.read(text)
    return body.text("bootId"), read_in(body)


def noted(text: str, boot_id: str) -> tuple[Binding, ...]:
    """The bindings in `text`, where it is a record of this boot: anything else is none."""
    try:
        boot, found = decode(text) if text else ("", ())
    except BindingsUnreadable:
        return ()
    return found if boot == boot_id else ()


def to_json(bindings: Iterable[Binding]) -> list[dict[str, Any]]:
    """The bindings as the record and the journal have them; what is empty is left out."""
    return [
        {
            "address": one.address,
            **({"driver": one.driver} if one.driver else {}),
            **({"override": one.override} if one.override else {}),
            **({"virtualCount": one.virtual_count} if one.virtual_count else {}),
        }
        for one in bindings
    ]


def read_in(body: Fields) -> tuple[Binding, ...]:
    """The bindings that `to_json` wrote as the field `devices`; none where there is no such field. Raises as `body`."""
    if "devices" not in body:
        return ()
    return tuple(
        Binding(
            one.text("address"),
            one.text("driver", ""),
            one.text("override", ""),
            one.whole("virtualCount", 0, least=0, most=MOST_VIRTUAL),
        )
        for one in body.each("devices")
    )
