"""Owns a clone of the repository on a test node, in which a page's commands are typed, and who follows a page in it.

Must not import the product.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.support.docs.markdown import ROOT
from tests.support.node.machine import Machine


class Clone:
    """A clone's deploy/, and an administrator of the node's cluster in it."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine, self.folder = machine, folder
        shutil.copytree(ROOT / "deploy", folder / "deploy")

    def types(self, line: str, **names: str) -> str:
        """Type one line, which ends well; `names` are what its capital letters stand for."""
        for name, meant in names.items():
            line = re.sub(rf"\b{name}\b", meant, line)
        config = f"KUBECONFIG={self.machine.plane.kubeconfig('admin')}"
        script = f"cd {self.folder} && {line}"
        done = self.machine.namespaces.run("env", config, "bash", "--norc", "--noprofile", "-c", script)
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
        return done.stdout


class Reader:
    """Somebody who types the commands of a page, each in its turn."""

    def __init__(self, types: Callable[..., str], lines: Iterable[str]) -> None:
        self._types = types
        self._typed, self._left = list[str](), [*lines]

    def next(self, begins: str, **names: str) -> str:
        """Type the page's next command, which begins like this; what it prints. AssertionError where it does not."""
        line = self._left.pop(0) if self._left else "its end"
        assert line.startswith(begins), f"next on the page is {line!r}, not {begins!r}"
        self._typed.append(line)
        return self._types(line, **names)

    def again(self, begins: str, **names: str) -> str:
        """Type once more the last command that begins like this, as the page says; what it prints."""
        return self._types([line for line in self._typed if line.startswith(begins)][-1], **names)

    def left(self) -> list[str]:
        """The commands of the page that were not typed."""
        return self._left
