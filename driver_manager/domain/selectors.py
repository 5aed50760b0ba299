"""Label selectors in the syntax of the Kubernetes API: `a=b,c!=d,e in (x,y),!f`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

_TERM = re.compile(
    r"(?P<absent>!)?\s*(?P<key>[^\s!=(),]+)\s*"
    r"(?:(?P<op>!=|==|=)\s*(?P<value>[^\s!=(),]*)|\s(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?"
)
KEY_PATTERN = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(KEY_PATTERN)
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
"""Names and values of labels (k8s.io/apimachinery validation.IsQualifiedName, IsValidLabelValue)."""


class _Term(Struct, frozen=True):
    """One requirement of a selector; with `values` None it matches any value."""

    key: str
    values: frozenset[str] | None
    is_negative: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        has = self.key in labels and (self.values is None or labels[self.key] in self.values)
        return has is not self.is_negative


class Selector(Struct, frozen=True):
    """A parsed selector. Without terms it matches every object, and is falsy."""

    text: str = ""
    terms: tuple[_Term, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(term.matches(labels) for term in self.terms)

    def __bool__(self) -> bool:
        return bool(self.terms)


def split(text: str) -> list[str]:
    """The terms of `text`, which commas outside parentheses separate; [] for blank text."""
    terms: list[list[str]] = [[]]
    is_inside = False
    for piece in re.split(r"([(),])", text):
        if piece == "," and not is_inside:
            terms.append([])
            continue
        is_inside = piece == "(" or (is_inside and piece != ")")
        terms[-1].append(piece)
    return ["".join(term).strip() for term in terms] if text.strip() else []


def parse(text: str) -> Selector:
    """The selector in `text` (kubernetes.io, Labels and Selectors). Raises ValueError, which names the invalid term.

    An empty term, such as between two commas, is invalid: it would match everything.
    """
    return Selector(text, tuple(_term(term) for term in split(text)))


def is_label_key(text: str) -> bool:
    return bool(_KEY.fullmatch(text))


def is_label_value(text: str) -> bool:
    return bool(_VALUE.fullmatch(text))


def _term(text: str) -> _Term:
    parsed = _TERM.fullmatch(text)
    if not parsed or (parsed["absent"] and (parsed["op"] or parsed["set"])):
        raise ValueError(f"unable to parse requirement: {text}")
    values = None
    if parsed["op"]:
        values = frozenset({parsed["value"]})
    elif parsed["set"]:
        values = frozenset(value.strip() for value in parsed["values"].split(","))
    if not is_label_key(parsed["key"]) or not all(map(is_label_value, values or ())):
        raise ValueError(f"unable to parse requirement: {text}")
    return _Term(parsed["key"], values, bool(parsed["absent"]) or parsed["op"] == "!=" or parsed["set"] == "notin")
