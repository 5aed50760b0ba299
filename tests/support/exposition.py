"""Reads Prometheus' text format, version 0.0.4, and accepts nothing else. Must not import the product."""

from __future__ import annotations

import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
HEAD = re.compile(rf"# (HELP|TYPE) ({NAME}) (.+)")
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
ESCAPE = re.compile(r'\\[\\"n]')
ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Sample = tuple[str, dict[str, str], float]


def samples(text: str) -> list[Sample]:
    """Name, labels and value of each sample. AssertionError unless each family has its help and type, once, before."""
    *lines, end = text.split("\n")
    assert end == "", "the last line has no end"
    found, heads = list[Sample](), dict[str, list[str]]()
    for line in filter(None, lines):
        if head := HEAD.fullmatch(line):
            heads.setdefault(head[2], []).append(head[1])
            family, kind = head[2], head[3]
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample is not None, f"no sample: {line!r}"
        assert sample[1] == family, f"{sample[1]} stands below the head of {family}"
        assert kind in ("gauge", "counter")
        labels = re.findall(LABEL, sample[2] or "")
        meant = {name: ESCAPE.sub(lambda one: ESCAPES[one[0]], value) for name, value in labels}
        found.append((sample[1], meant, float(sample[sample.re.groups])))
    assert all(words == ["HELP", "TYPE"] for words in heads.values()), heads
    assert len({(name, *labels.items()) for name, labels, _ in found}) == len(found), "a sample is there twice"
    return found
