"""Owns the sweep's figures: what was killed and what was lost, as one line for people and JSON for machines."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path as File

from tests.support.control_plane.sweep.paths import PATHS
from tests.support.control_plane.sweep.sweeping import Judged, Recording
from tests.support.selection import Share


@dataclass
class Figures:
    """Counts over all paths of one session, which kills at its share of the points."""

    share: Share = field(default_factory=Share)
    effects: dict[str, list[str]] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    terms_s: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, recording: Recording, judged: list[Judged], took_s: float) -> None:
        """Count one path."""
        self.effects[str(recording.path)] = [str(effect) for effect in recording.effects]
        self.seconds += took_s
        for one in judged:
            self.kills["kills"] += 1
            self.kills["reboots"] += one.point.reboots
            self.kills["interrupted writes"] += one.interrupted
            for name, lines in one.verdict.by_name().items():
                self.lost[name] += len(lines)

    def terminated(self, wait: str, took_s: float) -> None:
        """Count one SIGTERM."""
        self.terms_s[wait] = round(took_s, 3)

    def lines(self) -> list[str]:
        """What to say at the end of a session; nothing where nothing was swept."""
        said = []
        if self.effects:
            count, paths = sum(map(len, self.effects.values())), len(self.effects)
            said.append(
                f"share {self.share} of the kills: {count} effects on {paths} paths: killed {self.kills['kills']} "
                f"times, with a reboot after {self.kills['reboots']} of them, in {self.seconds:.0f} s"
            )
            said.append(", ".join(f"{number} {name.replace('_', ' ')}" for name, number in self.lost.items()))
        if self.terms_s:
            said.append(
                f"{len(self.terms_s)} waits ended by SIGTERM, the slowest in {max(self.terms_s.values()):.1f} s"
            )
        return said

    def write(self, path: File) -> None:
        """Leave them as JSON, where every kill of all paths was swept."""
        if self.share != Share() or self.effects.keys() != {one.name for one in PATHS}:
            return
        path.parent.mkdir(exist_ok=True)
        body = {
            "share": str(self.share),
            "effects": self.effects,
            "kills": self.kills,
            "lost": self.lost,
            "sigterm_s": self.terms_s,
            "seconds": round(self.seconds, 1),
        }
        path.write_text(json.dumps(body, indent=2) + "\n")
