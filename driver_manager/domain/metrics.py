"""Metric families, and the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from driver_manager.domain.text import shown

PREFIX = "driver_manager_"


class Family(Struct, frozen=True):
    """One metric: full name, kind (`gauge` or `counter`), help, and a value for each set of labels."""

    name: str
    kind: str
    help: str
    values: tuple[tuple[Mapping[str, str], float], ...]


def gauge(name: str, meaning: str, value: float) -> Family:
    """A gauge without labels. `name` has no prefix."""
    return Family(PREFIX + name, "gauge", meaning, (({}, float(value)),))


def counter(name: str, meaning: str, value: float) -> Family:
    """A counter without labels. `name` has no prefix."""
    return Family(PREFIX + name, "counter", meaning, (({}, float(value)),))


def by_label(kind: str, name: str, meaning: str, label: str, values: Mapping[str, float]) -> Family:
    """A metric with one label. `values` are by the value of that label; `name` has no prefix."""
    return Family(PREFIX + name, kind, meaning, tuple(({label: key}, float(value)) for key, value in values.items()))


def exposition(found: Iterable[Family]) -> str:
    lines = []
    for family in found:
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
        lines += [f"{family.name}{_labels(labels)} {value!r}" for labels, value in family.values]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    inner = ",".join(f'{name}="{shown(value).translate(escapes)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""
