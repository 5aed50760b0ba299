"""A wedge as it is remembered: since when, and what the Node was told of it last. Pure."""

from __future__ import annotations

from enum import Enum

from driver_manager.domain.frozen import Frozen


class NoticeKind(Enum):
    """What the Node is told of a wedge."""

    WEDGED = "wedged"
    RECOVERED = "recovered"
    MUTED = "muted"


class Wedge(Frozen):
    """The last wedge of this boot. `since_s` is when it was declared, in seconds since the epoch; 0: none is known.

    `told` is the last notice that reached the Node in this boot, None before the first. `evidence` is the file on the
    host with what could be seen when it was declared, "" where there is none.
    """

    since_s: int = 0
    told: NoticeKind | None = None
    evidence: str = ""


class Kept(Frozen):
    """What became of evidence: the file on the host, "" where none is wanted, or the problem."""

    path: str = ""
    problem: str = ""


NO_WEDGE = Wedge()
