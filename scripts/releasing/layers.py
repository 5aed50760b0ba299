"""An object with the changes of all overlays and components: every field with the conditions of its values.

A layer is applied as kustomize applies a patch (strategic merge). A result that no single condition
expresses is an error.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import yaml

from scripts.releasing.conditions import ALWAYS, VENDORS, When
from scripts.releasing.kustomize import MERGE_KEYS, Json


@dataclass
class Case:
    """A value and its condition. `node` is a Fields, an Entries, or a plain value."""

    when: When
    node: Any


class Fields(dict[str, list[Case]]):
    """A mapping: the cases of each field."""


class Entries(dict[str, list[Case]]):
    """A list with a merge key: the cases of each entry."""


def lifted(value: Any, field: str = "") -> Any:
    """A value of the field as a node without conditions."""
    if isinstance(value, dict):
        return Fields({key: [Case(ALWAYS, lifted(inner, key))] for key, inner in value.items()})
    if _is_keyed(value, field):
        return Entries({str(one[MERGE_KEYS[field]]): [Case(ALWAYS, lifted(one))] for one in value})
    return copy.deepcopy(value)


def _is_keyed(value: Any, field: str) -> bool:
    """True if the field is a list with a merge key; other fields have the same name elsewhere."""
    if not isinstance(value, list) or field not in MERGE_KEYS:
        return False
    return all(isinstance(one, dict) and MERGE_KEYS[field] in one for one in value)


def lay(node: Fields, patch: Json, when: When) -> None:
    """Lay the patch over the object, where `when` holds. Raises ValueError."""
    for key, value in patch.items():
        node[key] = _laid(node.get(key, []), value, when, key)


def _laid(cases: list[Case], value: Any, when: When, field: str) -> list[Case]:
    inner = lifted(_without_nulls(value), field)
    if isinstance(inner, Fields | Entries) and value is not None:
        for case in cases:
            if type(case.node) is type(inner) and not when.excludes(case.when):
                if not when.implies(case.when):
                    raise ValueError(f"{field}: {when} reaches beyond {case.when}")
                _merge(case.node, value, when, field)
                return cases
        return [*cases, Case(when, inner)]
    if any(case.node == inner and when.implies(case.when) for case in cases):
        return cases
    rest = [Case(left, case.node) for case in cases if (left := case.when.without(when)) is not None]
    return rest if value is None else [*rest, Case(when, inner)]


def _without_nulls(value: Any) -> Any:
    """The added part of a patch: nulls only remove."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return value


def _merge(node: Fields | Entries, value: Any, when: When, field: str) -> None:
    if isinstance(node, Fields):
        lay(node, value, when)
        return
    for one in value:
        key = str(one[MERGE_KEYS[field]])
        node[key] = _laid(node.get(key, []), one, when, "")


def text(node: Fields, known: When) -> str:
    """The object as a Helm template where `known` holds."""
    return "".join(f"{line}\n" for line in _lines(node, known, 0))


def united(template: str) -> str:
    """The same with neighbours under one condition in one block."""
    lines: list[str] = []
    opened: list[int] = []
    ended: int | None = None
    for line in template.splitlines():
        begins = ended if line.startswith("{{- if ") else None
        ended = None
        if begins is not None and lines[begins] == line:
            lines.pop()
            opened.append(begins)
            continue
        lines.append(line)
        if line.startswith("{{- if "):
            opened.append(len(lines) - 1)
        elif line == "{{- end }}":
            begun = opened.pop()
            # A block with alternatives is not continued.
            ended = None if any(each.startswith("{{- else") for each in lines[begun:]) else begun
    return "".join(f"{line}\n" for line in lines)


def _lines(node: Any, known: When, indent: int) -> Iterator[str]:
    if isinstance(node, Entries):
        for cases in node.values():
            yield from _choice(cases, known, partial(_entry, indent))
    elif isinstance(node, Fields):
        for key, cases in node.items():
            yield from _choice(cases, known, partial(_field, key, indent))
    else:
        for line in yaml.safe_dump(node, default_flow_style=False, width=10**6, sort_keys=False).splitlines():
            yield " " * indent + line


def _choice(cases: list[Case], known: When, shown: Callable[[Any, When], Iterator[str]]) -> Iterator[str]:
    """The cases, each under its condition."""
    cases = _joined([case for case in cases if not case.when.excludes(known)])
    conditions = [case.when.given(known).expression() for case in cases]
    if conditions == [""]:
        yield from shown(cases[0].node, known)
        return
    for number, (case, condition) in enumerate(zip(cases, conditions, strict=True)):
        yield f"{{{{- {'else ' if number else ''}if {condition} }}}}"
        yield from shown(case.node, _both(known, case.when))
    if cases:
        yield "{{- end }}"


def _joined(cases: list[Case]) -> list[Case]:
    """Cases of equal values as one, for all their vendors."""
    joined: list[Case] = []
    for case in cases:
        for other in joined:
            if other.node == case.node and replace(other.when, vendors=VENDORS) == replace(case.when, vendors=VENDORS):
                other.when = replace(other.when, vendors=other.when.vendors | case.when.vendors)
                break
        else:
            joined.append(Case(case.when, case.node))
    return joined


def _both(one: When, other: When) -> When:
    return When(one.vendors & other.vendors, one.having | other.having, one.lacking | other.lacking)


def _field(key: str, indent: int, node: Any, known: When) -> Iterator[str]:
    pad = " " * indent
    if isinstance(node, Fields | Entries) and node:
        always = [case for cases in node.values() for case in _joined(cases) if known.implies(case.when)]
        if not always:
            raise ValueError(f"{key} can be empty")
        yield f"{pad}{key}:"
        yield from _lines(node, known, indent + 2)
    elif isinstance(node, list | dict) and node:
        yield f"{pad}{key}:"
        yield from _lines(node, known, indent + 2)
    else:
        (line,) = yaml.safe_dump({key: _plain(node)}, width=10**6).splitlines()
        yield pad + line


def _plain(node: Any) -> Any:
    return {} if isinstance(node, Fields) else [] if isinstance(node, Entries) else node


def _entry(indent: int, node: Fields, known: When) -> Iterator[str]:
    for number, line in enumerate(_lines(node, known, indent + 2)):
        if number == 0 and line.startswith("{{"):
            raise ValueError(f"an entry that begins with a condition: {line}")
        yield line if number else f"{' ' * indent}- {line.lstrip()}"
