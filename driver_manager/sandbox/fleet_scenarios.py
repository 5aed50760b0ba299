"""The sandbox's stories of a fleet as data: who is there, which drivers come, by which rules.

Imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driver_manager.domain.frozen import Frozen


class Release(Frozen):
    """A driver by its version, with the digest of its configuration. `loads`: its module can be loaded."""

    version: str
    digest: str
    loads: bool = True


class FleetStory(Frozen):
    """One story: all nodes serve `old`, `bad` ends with its first node and is undone, `good` reaches all of them."""

    name: str
    tells: str
    nodes: tuple[str, ...]
    old: Release
    bad: Release
    good: Release
    spec: Mapping[str, Any]

    @property
    def canary(self) -> str:
        """The node that goes first, by its name."""
        return min(self.nodes)

    @property
    def releases(self) -> dict[str, Release]:
        """All of them by their versions."""
        return {release.version: release for release in (self.old, self.bad, self.good)}

    @property
    def waves(self) -> tuple[str, ...]:
        """The names of the waves in their order."""
        return tuple(wave["name"] for wave in self.spec["waves"])

    @property
    def most_at_once(self) -> int:
        """As many nodes may be under way."""
        return int(self.spec["maxParallel"])


FLEET_STORIES = {
    story.name: story
    for story in (
        FleetStory(
            "fleet",
            "twelve nodes: a driver whose canary fails, the halt, the undo, then a good driver wave by wave",
            tuple(f"node-{number:02}" for number in range(1, 13)),
            Release("1.2.92", "4d1f7c09a25e83b6"),
            Release("2.0.0", "77d0c1e58ab2f394", loads=False),
            Release("2.0.1", "9be2a06f4c31d758"),
            {
                "maxParallel": 4,
                "waves": [
                    {"name": "canary", "count": 1, "soak": "1s"},
                    {"name": "quarter", "percent": 25},
                    {"name": "rest"},
                ],
                "nodeTimeout": "1m",
            },
        ),
    )
}
