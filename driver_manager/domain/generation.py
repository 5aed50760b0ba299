"""The driver generation of a node: which driver serves it, since which load of which boot, and since when.

Owns when two sightings are one generation, since when one is ready, and the annotation that shows it. Who opened the
device under an earlier generation has stale handles. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from driver_manager.domain import timestamps
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.escaping import writable
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.wire import Fields, Form

MAX_TEXT_CHARS = 256
"""Of each text in the annotation and in records; no digest is longer."""


class GenerationUnreadable(ConfigError):
    """The annotation is none that this version can read."""


FORM = Form(
    "the driver generation",
    GenerationUnreadable,
    "No action needed: the next driver generation replaces it.",
    key="v",
    is_compact=True,
)


class Sighting(Frozen):
    """What the host says of its driver now. `load` is another text for each load, "" where none is loaded.

    `digest` is the recorded one, "" where there is none. `marked_s` is when its files were written by which a driver
    becomes ready, in seconds since the epoch.
    """

    boot_id: str
    load: str = ""
    digest: str = ""
    marked_s: tuple[float, ...] = ()


class Generation(Frozen):
    """One driver of one load; `ready_s` is since when it is ready, in seconds since the epoch, 0 where not known."""

    boot_id: str
    load: str
    digest: str = ""
    ready_s: float = field(default=0.0, compare=False)

    def goes_on_as(self, seen: Sighting | Generation) -> bool:
        """Whether these are the same. A digest that is recorded later, or removed, makes no other generation."""
        is_same_load = (self.boot_id, self.load) == (seen.boot_id, seen.load)
        return is_same_load and (self.digest == seen.digest or not (self.digest and seen.digest))


def seen_now(seen: Sighting, earlier: Generation | None, now_s: float) -> Generation:
    """The generation that the host has: `earlier`, which was recorded last, or the next one.

    It is ready since the last of its files was written. A file that is older than an earlier generation of this boot is
    that one's: then it is ready since it is seen, `now_s`. Without any file or earlier generation nobody knows since
    when, and nobody is held to have opened the device before.
    """
    if earlier is not None and earlier.goes_on_as(seen):
        return Generation(seen.boot_id, seen.load, earlier.digest or seen.digest, earlier.ready_s)
    before = earlier if earlier is not None and earlier.boot_id == seen.boot_id else None
    return Generation(seen.boot_id, seen.load, seen.digest, _ready_s(seen.marked_s, before, now_s))


def _ready_s(marked_s: Iterable[float], before: Generation | None, now_s: float) -> float:
    own = [moment for moment in marked_s if moment <= now_s and (before is None or moment > before.ready_s)]
    return max(own, default=now_s if before is not None else 0.0)


def encode(generation: Generation) -> str:
    """The annotation's text."""
    return FORM.write(
        {
            **to_json(generation),
            "ready": timestamps.written(generation.ready_s) if generation.ready_s else "",
        }
    )


def decode(text: str) -> Generation:
    """What `encode` wrote. Raises GenerationUnreadable."""
    body = FORM.read(text)
    return Generation(**texts_in(body), ready_s=timestamps.seconds_of(body.text("ready")) or 0.0)


def to_json(generation: Generation) -> dict[str, str]:
    """The fields of a generation in a document, its time apart."""
    return {"bootId": generation.boot_id, "load": generation.load, "digest": generation.digest}


def texts_in(body: Fields) -> dict[str, str]:
    """What `to_json` gave, by the names of the class. Raises as `body`."""
    named = {"boot_id": "bootId", "load": "load", "digest": "digest"}
    return {name: writable(body.text(key))[:MAX_TEXT_CHARS] for name, key in named.items()}
