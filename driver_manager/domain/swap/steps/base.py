"""What every step of a plan is: one line of text, and the rights that it needs.

A step is as big as what can be done, repeated or given back at once. Each family of steps has a module of its own,
which lists them in one union: what is not in it is in no plan, and what is in it has to be handled. Pure data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeAlias

from driver_manager.domain.frozen import Frozen
from driver_manager.domain.listing import several

Right: TypeAlias = tuple[str, str]
"""Verb and resource, as an access review names them."""

PATCH_NODES: Right = ("patch", "nodes")
WATCH_NODES: Right = ("watch", "nodes")
WATCH_PODS: Right = ("watch", "pods")
EVICT_PODS: Right = ("create", "pods/eviction")


class Step(Frozen, ABC):
    """One thing that a run does."""

    @property
    def name(self) -> str:
        """Its kind in words, as `wait for operands`: the same for every plan."""
        return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(self).__name__).strip()

    @abstractmethod
    def describe(self) -> str:
        """What it does, in one line."""

    @abstractmethod
    def rights(self) -> tuple[Right, ...]:
        """What it needs beyond the reads that made the plan."""


def named_pods(pods: tuple[str, ...]) -> str:
    """How many pods, and which."""
    return f"{len(pods)} pod(s) {several(pods)}"
