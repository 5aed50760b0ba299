"""The sandbox's swaps by further vendors' profiles: the modules' order, switches given back, the probe's verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from driver_manager.profiles import builtin
from driver_manager.sandbox.scenarios import VENDOR_SCENARIOS, Interference, ScenarioReport, run_scenario

pytestmark = [pytest.mark.submission, pytest.mark.shares(3)]  # each plays a whole upgrade as processes, four seconds

STORIES = {story.name: story for story in VENDOR_SCENARIOS}
WRONG = ("nothing happens",)


class Listener:
    """Keeps what is told, by chapter."""

    def __init__(self) -> None:
        self.chapters: list[list[str]] = []

    def chapter(self, title: str) -> None:
        self.chapters.append([title])

    def line(self, text: str) -> None:
        self.chapters[-1].append(text)


@dataclass(frozen=True)
class Played:
    """A story that was judged as one in which the kernel has to report something else."""

    name: str
    report: ScenarioReport
    chapters: list[list[str]]

    @property
    def texts(self) -> list[str]:
        return [happening.text for happening in self.report.timeline]


@pytest.fixture(scope="module", params=STORIES)
def played(request: pytest.FixtureRequest) -> Played:
    show = Listener()
    return Played(request.param, run_scenario(replace(STORIES[request.param], kernel=WRONG), show), show.chapters)


def test_it_ends_as_it_has_to_with_the_modules_in_the_vendors_order(played: Played) -> None:
    """All but the order, which is judged against a wrong one: so it is looked at, and this is what it is."""
    assert played.report.problems == [f"the kernel reports {list(STORIES[played.name].kernel)}, expected {list(WRONG)}"]


SWITCHED = {
    "amd-reboot": [
        "amd.com/gpu-driver-manager.reboot-required: (absent) → true",
        "amd.com/gpu-driver-manager.reboot-required: true → (absent)",
    ],
    "tenstorrent-upgrade": [
        "tenstorrent.com/deploy.tt-telemetry: (absent) → false",
        "pod tt-telemetry is being stopped",
        "pod tt-telemetry is gone",
        "tenstorrent.com/deploy.tt-telemetry: false → (absent)",
    ],
    "gaudi-upgrade": ["node cordoned", "pod training-0 is being stopped", "pod training-0 is gone", "node uncordoned"],
    "furiosa-upgrade": [],
}
"""What is taken from whoever uses the driver, and given back, besides journal, state and the mark on the cordon."""


def test_what_is_taken_is_given_back_exactly_and_around_the_swap(played: Played) -> None:
    keys = builtin()[STORIES[played.name].profile].keys
    apart = (keys.journal, keys.cordon, keys.state, keys.upgrade_state)
    seen = [
        "pod tt-telemetry" + text[text.index(" is ") :] if text.startswith("pod tt-telemetry-") else text
        for text in played.texts
        if not text.startswith((*apart, "module ", "journal ", "outcome "))
        and " sees a device" not in text
        and text not in (("node cordoned", "node uncordoned") if played.name != "gaudi-upgrade" else ())
    ]
    assert seen == SWITCHED[played.name]
    taken, *_, back = (at for at, text in enumerate(played.texts) if not text.startswith(("module ", played.name)))
    swap = [at for at, text in enumerate(played.texts) if text.startswith("module ")]
    assert taken < swap[0]
    assert swap[-1] < back


def test_the_vendors_own_parser_finds_the_device_healthy(played: Played) -> None:
    said = {
        "amd-reboot": "1 device(s) listed",
        "tenstorrent-upgrade": "1 device(s) answering",
        "gaudi-upgrade": "1 device(s) listed",
        "furiosa-upgrade": "1 device(s) alive",
    }
    title, headline, *lines = played.chapters[-1]
    assert title == "driver-manager status --probe"
    assert headline.startswith("ready since ")
    assert any(f"(probe: healthy: {said[played.name]}, sampled " in line for line in lines)
    assert any(line.split() == ["journal", "none:", "the", "node", "is", "not", "taken"] for line in lines)


def test_a_driver_that_only_a_reboot_changes_is_never_unloaded(played: Played) -> None:
    is_reboot = STORIES[played.name].interference is Interference.REBOOT_AFTER
    assert any(text.endswith(" unloaded") for text in played.texts) is not is_reboot
    assert played.report.exit_codes == ([9, 0] if is_reboot else [0])


def test_firmware_is_looked_for_where_the_profile_says_before_the_load(played: Played) -> None:
    firmware = builtin()[STORIES[played.name].profile].paths.firmware
    lines = [line for chapter in played.chapters for line in chapter]
    told = [at for at, line in enumerate(lines) if "] " in line and "firmware_class.path" in line]
    assert bool(told) is bool(firmware)
    for at in told:
        assert firmware in lines[at]
        assert any("] load " in line for line in lines[at:])
