"""What `status` looks like on a terminal: the state in colour, errors before notes; plain text and JSON elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from driver_manager.sandbox.apiserver import apply_merge_patch
from driver_manager.sandbox.cluster import NODE
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.sandboxed import ByHand, by_hand
from tests.support.fakes.terminal import STYLE, on_terminal

REPOSITORY = Path(__file__).parents[3]
STATUS = (sys.executable, "-m", "driver_manager", "status")
GREEN, RED, YELLOW = "\x1b[32m", "\x1b[31m", "\x1b[33m"
TIMEOUT_S = 150.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Generator[ByHand, None, None]:
    """A node that is ready, but for an error (its digest) and a note (a cordon that nobody needs)."""
    with by_hand(tmp_path_factory.mktemp("terminal")) as found:
        cordon: dict[str, Any] = {"metadata": {"annotations": {PROFILE.keys.cordon: "true"}}}
        cordon["spec"] = {"unschedulable": True}
        found.cluster.store.patch("nodes", NODE, lambda there: apply_merge_patch(there, cordon))
        yield found


def environment(node: ByHand, **more: str) -> dict[str, str]:
    return node.environment(DRIVER_CONFIG_DIGEST="two words", **more)


def piped(node: ByHand, *words: str) -> str:
    """What a pipe gets of it."""
    return subprocess.run(
        [*STATUS, *words],
        env={"TERM": "xterm", **environment(node)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    ).stdout


@pytest.mark.submission
def test_on_a_terminal_the_state_is_green_an_error_red_and_a_note_yellow_below_it(node: ByHand) -> None:
    shown = on_terminal(STATUS, environment(node), REPOSITORY)
    assert shown.status == 0
    first, *rest = shown.raw.splitlines()
    assert first.startswith(f"{GREEN}\x1b[1mready\x1b[0m: ")
    attention = [line for line in rest if STYLE.search(line)]
    assert [line.count(RED) for line in attention] == [1, 0]
    assert [line.count(YELLOW) for line in attention] == [0, 1]
    assert "digest" in attention[0]
    assert "cordon" in attention[1]
    assert rest[: rest.index(attention[1]) + 1].count(attention[0]) == 1, "errors come first"


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_who_wants_no_colour_gets_the_same_without(node: ByHand, variable: dict[str, str]) -> None:
    shown = on_terminal(STATUS, environment(node, **variable), REPOSITORY)
    assert not shown.is_styled
    assert "\x1b" not in shown.raw
    assert shown.text.startswith("ready: ")


@pytest.mark.submission
def test_a_pipe_gets_the_same_text_without_colour(node: ByHand) -> None:
    text = piped(node)
    assert "\x1b" not in text
    on_screen = on_terminal(STATUS, environment(node), REPOSITORY).text
    assert [line.rstrip() for line in on_screen.splitlines()] == [line.rstrip() for line in text.splitlines()]


@pytest.mark.submission
def test_json_is_json_on_a_terminal_too(node: ByHand) -> None:
    shown = on_terminal([*STATUS, "-o", "json"], environment(node), REPOSITORY)
    assert "\x1b" not in shown.raw
    assert json.loads(shown.text) == json.loads(piped(node, "-o", "json"))
