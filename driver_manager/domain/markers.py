"""The reboot-required marker: the one file by which reconcile, health watch and rebooter speak to each other.

Owns its JSON form and what is taken for a marker of an older operator. Every version ever written stays readable. Pure.
"""

from __future__ import annotations

import re

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.wire import LAST_MOMENT_S, Form, parsed

UPGRADE = "upgrade"
RECOVERY = "recovery"
REASONS = (UPGRADE, RECOVERY)
MAX_CHARS = 64 * 1024
"""No marker is larger, evidence and all: readers look at no more of a file."""

_LEGACY = re.compile(r"(?!\s*[{\[\"])[^\x00-\x08\x0e-\x1f\x7f\ufffd]{0,300}")
"""A line of text. What begins like JSON and is none is a marker that was cut short: its boot is not known."""

_NAMES_REASON = re.compile(r"\b(upgrad|recover)", re.IGNORECASE)


class Marker(Frozen):
    """A reboot is required for `reason`. `boot_id` "" is an older operator's, whose boot cannot be told.

    `written_s` is in seconds since the epoch. `evidence` are lines: the last samples of a probe, for instance.
    """

    reason: str
    boot_id: str
    node: str = ""
    from_driver: str = ""
    to_driver: str = ""
    writer: str = ""
    written_s: int = 0
    evidence: tuple[str, ...] = ()

    def is_stale(self, boot_id: str) -> bool:
        """Whether it was written before this boot, as far as it tells."""
        return self.boot_id not in ("", boot_id)


class MarkerUnreadable(ConfigError):
    """The file is not a marker that this version can act on."""


FORM = Form(
    "the reboot-required marker",
    MarkerUnreadable,
    "Look at the file on the host and remove it if nobody needs it; it has no effect.",
)


def encode(marker: Marker) -> str:
    """The file's content: one line of JSON. The oldest evidence is left out where it would be too long."""
    evidence = marker.evidence
    while True:
        text = _encoded(marker, evidence)
        if len(text) <= MAX_CHARS or not evidence:
            return text
        evidence = evidence[1:]


def decode(text: str) -> Marker:
    """The marker in `text`, JSON or an older operator's plain text that names a reason.

    Raises MarkerUnreadable for anything else: what is not understood must not reboot a node.
    """
    if len(text) > MAX_CHARS:
        raise FORM.refused(f"it is longer than {MAX_CHARS} characters")
    try:
        value = parsed(text)
    except ValueError:
        return _legacy(text)
    body = FORM.opened(value)
    if not body.text("bootId", ""):
        raise FORM.refused("it does not name a boot")
    return Marker(
        reason=body.choice("reason", REASONS),
        boot_id=body.text("bootId"),
        node=body.text("node", ""),
        from_driver=body.text("from", ""),
        to_driver=body.text("to", ""),
        writer=body.text("writer", ""),
        written_s=body.whole("time", 0, least=0, most=LAST_MOMENT_S),
        evidence=body.texts("evidence", ()),
    )


def _encoded(marker: Marker, evidence: tuple[str, ...]) -> str:
    body = {
        "reason": marker.reason,
        "bootId": marker.boot_id,
        "node": marker.node,
        "from": marker.from_driver,
        "to": marker.to_driver,
        "writer": marker.writer,
        "time": marker.written_s,
        **({"evidence": list(evidence)} if evidence else {}),
    }
    return FORM.write(body) + "\n"


def _legacy(text: str) -> Marker:
    """Plain text of the Alauda operator (v1.2.4): no boot, no schema, but a word for why."""
    found = _NAMES_REASON.search(text) if _LEGACY.fullmatch(text) else None
    if found is None:
        raise FORM.refused("it is neither JSON nor a line that names upgrade or recovery")
    return Marker(UPGRADE if found.group(1).lower() == "upgrad" else RECOVERY, boot_id="")
