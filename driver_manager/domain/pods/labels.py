"""How deploy labels are paused and restored."""

from __future__ import annotations

import re
from collections.abc import Mapping

from driver_manager.domain.node import MAX_LABEL_VALUE_CHARS


def paused_form(value: str, paused_value: str) -> str:
    """The value that pauses a label now holding `value`: at most 63 characters."""
    if value == "true":
        return paused_value
    combined = f"{value}_{paused_value}"
    return combined if len(combined) <= MAX_LABEL_VALUE_CHARS else paused_value


def is_paused(value: str | None, paused_value: str) -> bool:
    """Whether `value` has the form that some manager writes to pause a label."""
    return value is not None and (value == paused_value or value.endswith(f"_{paused_value}"))


def decoded(value: str, paused_value: str) -> str:
    """The original of a paused `value`, decoded from the value itself (a truncated one reads as `true`)."""
    return value.removesuffix(f"_{paused_value}") if value != paused_value else "true"


def is_pausable(value: str | None) -> bool:
    """Whether a label holding `value` switches an operand on: `false`, empty and absent do not."""
    return value not in (None, "", "false")


def is_on(value: str | None, paused_value: str) -> bool:
    """Whether a label holding `value` places an operand now: it is on, and no component has paused it."""
    is_off = not is_pausable(value) or is_paused(value, paused_value)
    return not is_off and not is_paused_by_others(value, paused_value)


_PAUSED_BY_OTHERS = re.compile(r"(.*_)?paused-for-[A-Za-z0-9.-]+")


def is_paused_by_others(value: str | None, paused_value: str) -> bool:
    """Whether another component paused the label, as NVIDIA's mig-manager does (`paused-for-mig-change`)."""
    is_ours = is_paused(value, paused_value)
    return value is not None and not is_ours and _PAUSED_BY_OTHERS.fullmatch(value) is not None


OFF = "false"
"""The value that switches off a component that is on unless its label is false."""


def gate_originals(
    labels: Mapping[str, str], journaled: Mapping[str, str | None], keys: frozenset[str]
) -> dict[str, str | None]:
    """Original value by key, None if absent, of every gate in `keys` that is on, or by the journal was when paused."""
    return {
        key: journaled.get(key) if labels.get(key) == OFF else labels.get(key)
        for key in sorted(keys)
        if labels.get(key) != OFF or key in journaled
    }


def gates_restored(labels: Mapping[str, str], saved: Mapping[str, str | None]) -> dict[str, str | None]:
    """New value by key, None to remove it, of the gates in `saved` that are still off."""
    return {key: original for key, original in sorted(saved.items()) if labels.get(key) == OFF}


def originals(
    labels: Mapping[str, str], journaled: Mapping[str, str], keys: frozenset[str], paused_value: str
) -> dict[str, str]:
    """Original value by key, of every label in `keys` that is paused or can be.

    A paused label is explained by the journal where its value is the one we wrote for the journaled original, else by
    the value itself. A label that is not paused speaks for itself: an edit during the pause wins over the journal.
    """
    found: dict[str, str] = {}
    for key in sorted(keys & labels.keys()):
        value = labels[key]
        if is_paused(value, paused_value):
            known = journaled.get(key)
            ours = known is not None and paused_form(known, paused_value) == value
            found[key] = known if ours and known is not None else decoded(value, paused_value)
        elif is_on(value, paused_value):
            found[key] = value
    return found


def restored(labels: Mapping[str, str], saved: Mapping[str, str], paused_value: str) -> dict[str, str]:
    """New value by key, of the labels in `saved` that still hold a pause of it; all others are left as they are.

    A pause that another component has set on top of ours is kept.
    """
    found = {}
    for key, original in sorted(saved.items()):
        value, ours = labels.get(key), paused_form(original, paused_value)
        if value is None:
            continue
        if _is_pause_of(original, value, paused_value):
            found[key] = original
        elif value.startswith(f"{ours}_") and is_paused_by_others(value, paused_value):
            theirs = value.removeprefix(f"{ours}_")
            found[key] = theirs if original == "true" else f"{original}_{theirs}"
    return found


def _is_pause_of(original: str, value: str, paused_value: str) -> bool:
    """Whether `value` pauses `original`: as we write it, or as another manager may (`true` with our suffix)."""
    if value == original or not is_paused(value, paused_value):
        return False
    return value == paused_form(original, paused_value) or decoded(value, paused_value) == original
