"""Every remedy in the sources, in each place where a command runs: it advises what can be done there."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from driver_manager import profiles
from driver_manager.adapters.kube import api
from driver_manager.adapters.kube.fleet import INSTALL
from driver_manager.cli.main import COMMANDS, cli
from driver_manager.cli.rollout_screen import NO_CONTROLLER
from driver_manager.domain import errors
from driver_manager.domain.errors import PHRASES, ManagerError, Place, at_place

PACKAGE = Path(errors.__file__).parents[1]
KINDS = {
    name
    for name, one in {**vars(errors), **vars(api)}.items()
    if isinstance(one, type) and issubclass(one, ManagerError)
}
INTERNAL = {"WatchBroken", "WatchExpired"}
"""Errors of a watch, which is read again: their remedies may be empty."""

BY_HAND = ("is retried", "next run tries", "next run asks", "then run again")
"""What a command that a person types must not say: nothing repeats it."""

FORBIDDEN = {
    Place.POD: ("run again", "Run again", "run the command again", "Run the command"),
    Place.NODE: BY_HAND,
    Place.LAPTOP: (*BY_HAND, "from this node", "this pod"),
}


def sources() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "sandbox" not in path.parts[-2:] and path.name != "sandbox.py":
            yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text(encoding="utf-8"))


def text_of(node: ast.expr | None, module: str) -> str | None:
    """The text of an expression, with X for what is inserted; None if it is not written there."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)  # type: ignore[misc]
    if isinstance(node, ast.BinOp):
        return (text_of(node.left, module) or "X") + (text_of(node.right, module) or "X")
    if isinstance(node, ast.Name) and node.id.isupper():
        value = getattr(importlib.import_module(module), node.id, None)
        return value if isinstance(value, str) else None
    return None


def remedies() -> Iterator[tuple[str, str]]:
    """Each remedy with its place in the sources: arguments of errors, constants and variables of that name."""
    for path, tree in sources():
        module = "driver_manager." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for node in ast.walk(tree):
            found: list[ast.expr] = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found += [one.value for one in node.keywords if one.arg == "remedy"]
                if node.func.id in KINDS and len(node.args) > 1:
                    found.append(node.args[1])
                if node.func.id == "Check" and len(node.args) > 3:
                    found.append(node.args[3])
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).rpartition(".")[2] == "remedy":
                found.append(node.value)
            for one in found:
                for part in _parts(one):
                    text = text_of(part, module)
                    if text is not None and (text or _needs_one(node)):
                        yield f"{path}:{getattr(node, 'lineno', 0)}", text


def _parts(node: ast.expr) -> list[ast.expr]:
    """The expressions of which `node` is one."""
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    return node.values if isinstance(node, ast.BoolOp) else [node]


def _needs_one(node: ast.AST) -> bool:
    """True if `node` makes an error that ends a command. Decisions and checks that need none have an empty remedy."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS - INTERNAL


REMEDIES = sorted(remedies())


def test_the_sources_have_many_remedies_each_one_of_an_error_is_a_sentence_and_no_phrase_is_unused() -> None:
    assert len(REMEDIES) > 150
    assert [where for where, remedy in REMEDIES if not remedy] == []
    unused = {phrase for phrase in PHRASES if not any(phrase in remedy for _, remedy in REMEDIES)}
    assert (unused, {len(words) for words in PHRASES.values()}) == (set(), {len(Place)}), "one in every place"


@pytest.mark.parametrize("place", list(Place))
def test_a_remedy_advises_what_can_be_done_in_its_place(place: Place) -> None:
    wrong = {
        where: remedy for where, remedy in REMEDIES if any(word in at_place(remedy, place) for word in FORBIDDEN[place])
    }
    assert wrong == {}


def test_advice_names_folders_that_can_be_applied() -> None:
    """A component is none: it needs an overlay around it."""
    folders = [PACKAGE.parent / INSTALL.split()[-1].rstrip("`").replace("VENDOR", name) for name in profiles.builtin()]
    assert [folder for folder in folders if not (folder / "kustomization.yaml").is_file()] == []
    assert "deploy/components" not in " ".join((NO_CONTROLLER, *(remedy for _, remedy in REMEDIES)))


def test_advice_names_commands_and_options_that_exist() -> None:
    context = click.Context(cli)
    commands = {words for words, _ in cli.each()} | {name for name in COMMANDS if cli.get_command(context, name)}
    shown = [one for _, command in cli.each() for one in command.params if not getattr(one, "hidden", False)]
    flags = {flag for one in shown for flag in one.opts}
    texts = [text_of(_as_text(node), "") or "" for _, tree in sources() for node in ast.walk(tree)]
    advice = " ".join(text for text in texts if " " in text)
    named = set(re.findall(r"`driver-manager ((?:rollout |profile )?[a-z-]+)", advice))
    assert named - commands == set()
    assert len(named) > 5
    of_others = {"--force-conflicts", "--server-side", "--kubeconfig"}
    assert set(re.findall(r"\((--[a-z-]+)\)", advice)) - flags - of_others == set()


def _as_text(node: ast.AST) -> ast.expr | None:
    return node if isinstance(node, ast.Constant | ast.JoinedStr) else None
