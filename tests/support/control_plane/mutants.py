"""Ways to break the product, in a process of its own, that its judges have to notice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from driver_manager.core.swap import node as settling
from driver_manager.core.swap.node import Fence
from driver_manager.domain.node import Node, NodeChange
from driver_manager.domain.pods import labels
from driver_manager.domain.swap import node_patches, planner


def apply(name: str) -> None:
    """Break this process in the way called `name`; "" for not at all."""
    if name:
        MUTANTS[name]()


def _replace(owner: object, name: str, mutant: Callable[..., Any]) -> None:
    assert hasattr(owner, name), f"{name} was renamed: the mutant breaks nothing"
    setattr(owner, name, mutant)


def _unconditional_restore() -> None:
    def restored(now: Mapping[str, str], saved: Mapping[str, str], _: str) -> dict[str, str]:
        return {key: value for key, value in saved.items() if now.get(key) != value}

    _replace(labels, "restored", restored)


def _always_uncordon() -> None:
    release = node_patches.release

    def uncordoning(node: Node, *rest: Any) -> NodeChange:
        change: NodeChange = release(node, *rest)
        return replace(change, unschedulable=False if node.unschedulable else None)

    for module in (settling, node_patches):
        _replace(module, "release", uncordoning)


def _keep_journal() -> None:
    release = node_patches.release

    def keeping(node: Node, journal: Any, profile: Any) -> NodeChange:
        change: NodeChange = release(node, journal, profile)
        kept = {key: value for key, value in change.annotations.items() if key != profile.keys.journal}
        return replace(change, annotations=kept)

    for module in (settling, node_patches):
        _replace(module, "release", keeping)


def _adopt_every_pause() -> None:
    _replace(node_patches, "paused_by_others", lambda *_: frozenset())


def _no_owner_check() -> None:
    _replace(planner, "refuse_if_owned", lambda *_, **__: None)


def _no_fence() -> None:
    _replace(Fence, "effect", lambda *_: contextlib.nullcontext())


MUTANTS: dict[str, Callable[[], None]] = {
    "unconditional restore": _unconditional_restore,
    "always uncordon": _always_uncordon,
    "keep the journal": _keep_journal,
    "adopt every pause": _adopt_every_pause,
    "no owner check": _no_owner_check,
    "no fence": _no_fence,
}
