"""The console blocks of README.md and docs/: their commands, what is run for each, and how it has to end.

A block is fenced with ```console, in a list too. A line that begins with `$ ` is a command; the lines below it, if any,
are printed by it. Everything that is not run as written is in the one table SUBSTITUTIONS, with the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.docs.markdown import DOCS, ROOT

FENCE = re.compile(r"^ *```(\w*)\s*$")
FILE = re.compile(r"^```yaml\n# ([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`((?:kubectl|kustomize|helm|driver-manager|sha256sum) [^`]+|scripts/[^`]+)`")


class Unknown(Exception):
    """A command that this test neither can run nor may leave out."""


@dataclass(frozen=True)
class Command:
    """One command as a reader finds it, and what the page says that it prints."""

    page: str
    line: int
    text: str
    prints: tuple[str, ...] = ()


SUBSTITUTIONS: tuple[tuple[str, str | None, str], ...] = (
    (
        r"kubectl config view .*?\| kubectl .*?exec -i .*?-- (driver-manager \S+)(?: --node-name=\$N)?(.+)",
        r'cat "$KUBECONFIG" | env -u KUBECONFIG \1\2',
        "no cluster: what runs in the container is run, with a kubeconfig through a pipe as there",
    ),
    (r"(N|A|D|read -r NS P IMAGE)[= ].+", None, "no cluster; the node tier and test_pages.py have one"),
    (r"kubectl .*?exec .*?-- (.+)", r"\1", "no cluster: what runs in the container is run"),
    (r"(kubectl|kustomize|helm|crictl) .+", None, "no cluster here; deploy/ has tests of its own"),
    (r"(kind|sed) .+|\.venv/bin/driver-manager .+", None, "the quickstart's; the node tier runs them"),
    (r"(buildah|podman|docker|skopeo) .+", None, "no image here; the image tier builds and runs it"),
    (r"(git|sudo|apt-get|curl|ssh|systemctl|setup-envtest) .+", None, "the world, not this project"),
    (r"\(umask 077; kubectl .+\)", None, "no cluster here; test_pages.py has one"),
    (r"(for|rm -rf) .+", None, "no cluster and no host here; test_pages.py has both"),
    (r"rm by-hand\.kubeconfig", None, "what makes it is not run either"),
    (r"cd .+", None, "the world, not this project"),
    (r"scripts/(reference|pictures)", r"scripts/\1 --check", "it would write into the checkout"),
    (r"driver-manager rollout (pause|status|history|undo|resume)", None, "no rollout here; test_pages.py has one"),
    (r"(driver-manager \S+) --node-name=N(.*)", r"\1\2", "a node has a name of its own"),
    (r"(scripts/demo.*)", r"\1", "as written"),
    (r"(?:\S+=\S+ )*(scripts/[\w-]+).*", r"\1 --help", "it takes minutes, and scripts/test would run itself"),
    (r"((?:\S+=\S+ )*(?:\.venv/bin/)?driver-manager .+)", r"\1", "as written"),
    (r"(source <\(driver-manager completion bash\))", r"\1", "as written"),
)
"""A pattern, what is run in place of a command that matches it (nothing where None), and why. The first one counts."""

EXITS = {"driver-manager profile check broken.toml": 2}
"""Commands that do not end with 0, by what is run."""

PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))


def commands(page: Path) -> Iterator[Command]:
    inside, found = False, list[Command]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if fence := FENCE.match(line):
            inside = not inside and fence[1] == "console"
        elif inside and line.lstrip().startswith("$ "):
            found.append(Command(page.name, number, line.lstrip()[2:].partition("  #")[0].strip()))
        elif inside and found and line.strip():
            found[-1] = replace(found[-1], prints=(*found[-1].prints, line.strip()))
    return iter(found)


def commands_below(page: Path, heading: str) -> list[str]:
    heads, inside = list[tuple[int, str]](), False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if FENCE.match(line):
            inside = not inside
        elif not inside and re.match(r"#+ ", line):
            heads.append((number, line.lstrip("# ")))
    (begin,) = [number for number, name in heads if name == heading]
    end = next((number for number, _ in heads if number > begin), math.inf)
    return [one.text for one in commands(page) if begin < one.line < end]


def commands_in_passing(text: str) -> list[str]:
    """The commands of a page that are not in its console blocks: lines of plain blocks, then spans of code."""
    plain = "".join(body for kind, body in BLOCK.findall(text) if not kind)
    lines = [line.partition("  #")[0].strip() for line in plain.splitlines()]
    return [*filter(None, lines), *(" ".join(span.split()) for span in SPAN.findall(BLOCK.sub("", text)))]


def files(page: Path) -> dict[str, str]:
    """The files that a page has the reader make, by the name in their first line."""
    return dict(FILE.findall(page.read_text(encoding="utf-8")))


def substituted(text: str) -> str | None:
    """What is run for the command `text`, None where nothing is. Raises Unknown."""
    for pattern, instead, _ in SUBSTITUTIONS:
        if re.fullmatch(pattern, text):
            return re.sub(f"^{pattern}$", instead, text) if instead is not None else None
    raise Unknown(f"say in tests/support/docs/console.py what becomes of: {text}")
