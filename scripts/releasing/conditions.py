"""Conditions of parts of the chart: for some vendors, with some components, without others."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scripts.releasing.kustomize import OVERLAYS

VENDORS = frozenset(OVERLAYS)

REQUIRES = {
    "rebooter-eviction": ("rebooter",),
    "openshift-rebooter": ("openshift", "rebooter"),
    "openshift-rollout": ("openshift", "rollout"),
}
"""Components that another component requires."""


@dataclass(frozen=True)
class When:
    """True if all parts hold."""

    vendors: frozenset[str] = VENDORS
    having: frozenset[str] = frozenset()
    lacking: frozenset[str] = frozenset()

    def implies(self, other: When) -> bool:
        """True if `other` holds wherever this does."""
        return self.vendors <= other.vendors and self.having >= other.having and self.lacking >= other.lacking

    def excludes(self, other: When) -> bool:
        """True if the two never hold together."""
        return not (self.vendors & other.vendors) or bool(self.having & other.lacking or self.lacking & other.having)

    def without(self, other: When) -> When | None:
        """This except where `other` holds; None if nothing is left. Raises ValueError if no `When` expresses it."""
        if self.excludes(other):
            return self
        if self.implies(other):
            return None
        others = self.vendors - other.vendors
        more = (other.having - self.having, other.lacking - self.lacking)
        if others and not any(more):
            return replace(self, vendors=others)
        if not others and len(more[0]) == 1 and not more[1]:
            return replace(self, lacking=self.lacking | more[0])
        raise ValueError(f"{self} without {other} is more than one condition")

    def given(self, known: When) -> When:
        """The part that is still open where `known` holds."""
        vendors = VENDORS if self.vendors >= known.vendors else self.vendors
        return When(vendors, self.having - known.having, self.lacking - known.lacking)

    def expression(self) -> str:
        """The condition as an expression of Helm's templates; "" if it always holds."""
        parts = []
        if self.vendors != VENDORS:
            names = " ".join(f'"{name}"' for name in sorted(self.vendors))
            parts.append(
                f"eq .Values.vendor {names}" if len(self.vendors) == 1 else f"has .Values.vendor (list {names})"
            )
        # Who has a component has what it requires.
        asked = self.having - {needed for name in self.having for needed in REQUIRES.get(name, ())}
        parts += [f'include "driver-manager.has" (list . "{name}")' for name in sorted(asked)]
        parts += [f'not (include "driver-manager.has" (list . "{name}"))' for name in sorted(self.lacking)]
        return parts[0] if len(parts) == 1 else "and" + "".join(f" ({part})" for part in parts) if parts else ""


ALWAYS = When()
