"""The sandbox's story of clients: refused without a consent, then each client is restarted once, in the right order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driver_manager.sandbox.scenarios import SCENARIOS, ScenarioReport, run_scenario

STORY = SCENARIOS["clients"]

pytestmark = [pytest.mark.submission, pytest.mark.shares(3)]


class Listener:
    """Keeps what is told, by chapter."""

    def __init__(self) -> None:
        self.chapters: list[list[str]] = []

    def chapter(self, title: str) -> None:
        self.chapters.append([title])

    def line(self, text: str) -> None:
        self.chapters[-1].append(text)


@pytest.fixture(scope="module")
def told() -> tuple[ScenarioReport, list[list[str]]]:
    """How the story went, and what was told of it; judged as one in which nobody may be restarted."""
    show = Listener()
    return run_scenario(replace(STORY, restarts=()), show), show.chapters


def test_it_ends_as_it_has_to_and_who_was_restarted_is_looked_at(
    told: tuple[ScenarioReport, list[list[str]]],
) -> None:
    report, _ = told
    assert report.exit_codes == [4, 0]
    assert STORY.restarts == ("monitoring/npu-exporter", "telemetry/npu-agent")
    assert report.problems == [f"restarted clients {list(STORY.restarts)}, expected []"]


def test_the_refusal_names_the_client_and_the_option(told: tuple[ScenarioReport, list[list[str]]]) -> None:
    _, (_, refused, _, again, status) = told
    *_, what, remedy = refused
    assert "in pod telemetry/npu-agent-" in what
    assert what.endswith("no pod was disturbed")
    assert "RESTART_CLIENTS=true" in remedy
    assert "RESTART_CLIENTS=true" in again[0]
    assert any("client monitoring/npu-exporter-" in line and line.endswith("was restarted") for line in status)


def test_who_holds_the_device_leaves_before_the_swap_and_who_does_not_after_it(
    told: tuple[ScenarioReport, list[list[str]]],
) -> None:
    report, _ = told
    texts = [happening.text for happening in report.timeline]
    stops = [text.split()[1].rpartition("-")[0] for text in texts if text.endswith("is being stopped")]
    clients = [name for name in stops if name.startswith("npu-")]
    assert clients == ["npu-agent", "npu-exporter"], "each once"
    taken, back = texts.index("journal written"), texts.index("journal removed")
    agent, exporter = (next(n for n, text in enumerate(texts) if text.startswith(f"pod {name}")) for name in clients)
    assert taken < agent < back < exporter
