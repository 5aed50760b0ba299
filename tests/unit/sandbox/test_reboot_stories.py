"""The stories of reboots are readable: every line names who says it, in the order in which it was said."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from driver_manager.sandbox.scenarios import REBOOT_SCENARIOS, ScenarioReport, run_reboot_scenario

pytestmark = [pytest.mark.submission, pytest.mark.shares(3)]

NAMED = re.compile(r"(?:(?P<node>sandbox-node\S*) +)?(?P<agent>[a-z-]+) +\| (?P<said>.*)")
MOMENT = re.compile(r"\d\d:\d\d:\d\d\.\d{3} ")


Said = tuple[str, str, str]
"""Node, agent and words of a line."""


@dataclass
class Listener:
    """A show that remembers what it was told."""

    chapters: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def chapter(self, title: str) -> None:
        self.chapters.append(title)

    def line(self, text: str) -> None:
        self.lines.append(text)


def played(name: str) -> tuple[ScenarioReport, Listener, list[Said]]:
    """How the story went, what was told, and each line as node, agent and words."""
    show = Listener()
    report = run_reboot_scenario(REBOOT_SCENARIOS[name], show)
    found = [NAMED.fullmatch(line) for line in show.lines]
    assert all(found), [line for line, one in zip(show.lines, found, strict=True) if one is None]
    assert report.problems == []
    return report, show, [(one["node"] or "", one["agent"], one["said"]) for one in found if one is not None]


@pytest.fixture(scope="module")
def approved() -> tuple[Listener, list[Said]]:
    """The story of one node whose reboot is approved, played once."""
    _, show, said = played("reboot-approved")
    return show, said


def place(said: list[Said], agent: str, words: str) -> int:
    """Where an agent first says something."""
    return next(number for number, (_, who, what) in enumerate(said) if who == agent and words in what)


def test_with_one_node_each_agent_is_named_and_what_happened_first_is_shown_first(
    approved: tuple[Listener, list[Said]],
) -> None:
    show, said = approved
    assert {agent for _, agent, _ in said} == {"rebooter", "plan", "reconcile", "status"}
    assert {node for node, _, _ in said} == {""}
    # The rebooter gives the slot back once the driver that a reconcile loads is there: both are at work at that time.
    assert place(said, "reconcile", "load drv_pcie_host") < place(said, "rebooter", "complete the reboot")
    assert sum("approve-reboot=true" in title for title in show.chapters) == 1


def test_status_is_shown_as_far_as_it_is_about_the_reboot(approved: tuple[Listener, list[Said]]) -> None:
    _, said = approved
    status = [words for _, agent, words in said if agent == "status"]
    assert status[0].startswith("reboot-required")
    assert any("Approve the reboot" in words for words in status)
    assert len(status) <= 4


def test_with_two_nodes_each_line_and_each_change_names_its_node() -> None:
    report, show, said = played("reboot-one-slot")
    nodes = {"sandbox-node", "sandbox-node-2"}
    assert {node for node, _, _ in said} == nodes
    for node in nodes:
        moments = [MOMENT.match(words) for who, agent, words in said if (who, agent) == (node, "rebooter")]
        stamps = [one[0] for one in moments if one is not None]
        assert len(stamps) > 3
    changes = [happening.text for happening in report.timeline if "reboot-in-progress" in happening.text]
    assert {text.partition(": ")[0] for text in changes} == nodes
    assert sum("its first lines" in title for title in show.chapters) == 1, "both say the same"
