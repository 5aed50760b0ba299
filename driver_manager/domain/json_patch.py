"""A JSON patch (RFC 6902) as data: operations that apply together, or not at all. Pure.

A `test` that fails makes the whole patch fail, so a patch can name what it rests on without a look before it.
"""

from __future__ import annotations

from typing import Any

from driver_manager.domain.frozen import Frozen


class Operation(Frozen):
    """One operation at `path`, a JSON pointer; a removal has no value."""

    op: str
    path: str
    value: Any = None

    def to_json(self) -> dict[str, Any]:
        """As it is sent."""
        body = {"op": self.op, "path": self.path}
        return body if self.op == "remove" else {**body, "value": self.value}


def expect(value: Any, *where: str | int) -> Operation:
    """The patch applies only where `where` holds `value`."""
    return Operation("test", pointer(*where), value)


def replaced(old: Any, new: Any, *where: str | int) -> tuple[Operation, ...]:
    """`new` in place of `old`, which has to be there; None removes it."""
    change = Operation("remove", pointer(*where)) if new is None else Operation("replace", pointer(*where), new)
    return (expect(old, *where), change)


def pointer(*where: str | int) -> str:
    """The JSON pointer (RFC 6901) that leads through `where`."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in where)
