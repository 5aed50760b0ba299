"""What the API server tells of pods as they change: the events of a watch, and the answers to evictions.

Pure; asking belongs to `driver_manager.adapters.kube.cluster`.
"""

from __future__ import annotations

from enum import Enum

from driver_manager.domain.frozen import Frozen
from driver_manager.domain.pod import Pod


class PodEventKind(Enum):
    """What a watch says happened."""

    PRESENT = "present"
    GONE = "gone"
    BOOKMARK = "bookmark"


class PodEvent(Frozen):
    """One change seen by a watch; a bookmark has no pod. A watch resumes after `resource_version`."""

    kind: PodEventKind
    pod: Pod | None
    resource_version: str


class EvictionOutcome(Enum):
    """How the API server took an eviction."""

    ACCEPTED = "accepted"
    GONE = "gone"
    BLOCKED = "blocked"


class Eviction(Frozen):
    """The answer to an eviction; GONE: there is no such pod, at most another one of its name. `why` it is blocked."""

    outcome: EvictionOutcome
    why: str = ""
    retry_after_s: float = 0.0
