"""The scenarios of clients, of reboots and of further vendors: their end, the order of changes, and their output."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from driver_manager.profiles import builtin
from driver_manager.sandbox.scenarios import (
    REBOOT_SCENARIOS,
    SCENARIOS,
    VENDOR_SCENARIOS,
    Interference,
    ScenarioReport,
    run_reboot_scenario,
    run_scenario,
)

pytestmark = [pytest.mark.submission, pytest.mark.shares(3)]  # each plays whole runs as processes, four seconds


@dataclass
class Played:
    """A show that keeps the lines of each chapter, and the report."""

    chapters: list[list[str]] = field(default_factory=list)
    report: ScenarioReport = None  # type: ignore[assignment]  # set when it is over

    def chapter(self, title: str) -> None:
        self.chapters.append([title])

    def line(self, text: str) -> None:
        self.chapters[-1].append(text)

    @property
    def lines(self) -> list[str]:
        return [line for chapter in self.chapters for line in chapter[1:]]

    @property
    def texts(self) -> list[str]:
        return [happening.text for happening in self.report.timeline]


# Clients: refused without a consent, then each client is restarted once.

CLIENTS = SCENARIOS["clients"]


@pytest.fixture(scope="module")
def clients() -> Played:
    """The scenario, checked as if no client might be restarted."""
    played = Played()
    played.report = run_scenario(replace(CLIENTS, restarts=()), played)
    return played


def test_a_restarted_client_is_reported(clients: Played) -> None:
    assert clients.report.exit_codes == [4, 0]
    assert CLIENTS.restarts == ("monitoring/npu-exporter", "telemetry/npu-agent")
    assert clients.report.problems == [f"restarted clients {list(CLIENTS.restarts)}, expected []"]


def test_the_refusal_names_the_client_and_the_option(clients: Played) -> None:
    _, refused, _, again, status = clients.chapters
    *_, what, remedy = refused
    assert "in pod telemetry/npu-agent-" in what
    assert what.endswith("no pod was disturbed")
    assert "RESTART_CLIENTS=true" in remedy
    assert "RESTART_CLIENTS=true" in again[0]
    assert any("client monitoring/npu-exporter-" in line and line.endswith("was restarted") for line in status)


def test_a_client_with_an_open_device_leaves_before_the_swap_and_the_other_one_after_it(clients: Played) -> None:
    texts = clients.texts
    stops = [text.split()[1].rpartition("-")[0] for text in texts if text.endswith("is being stopped")]
    names = [name for name in stops if name.startswith("npu-")]
    assert names == ["npu-agent", "npu-exporter"], "each once"
    taken, back = texts.index("journal written"), texts.index("journal removed")
    agent, exporter = (next(n for n, text in enumerate(texts) if text.startswith(f"pod {name}")) for name in names)
    assert taken < agent < back < exporter


# Reboots: every line names its node and program.

NAMED = re.compile(r"(?:(?P<node>sandbox-node\S*) +)?(?P<agent>[a-z-]+) +\| (?P<words>.*)")
MOMENT = re.compile(r"\d\d:\d\d:\d\d\.\d{3} ")
Line = tuple[str, str, str]
"""Node, program and words."""


def rebooted(name: str) -> tuple[Played, list[Line]]:
    played = Played()
    played.report = run_reboot_scenario(REBOOT_SCENARIOS[name], played)
    found = [NAMED.fullmatch(line) for line in played.lines]
    assert all(found), [line for line, one in zip(played.lines, found, strict=True) if one is None]
    assert played.report.problems == []
    return played, [(one["node"] or "", one["agent"], one["words"]) for one in found if one is not None]


def test_an_approved_reboot_shows_each_program_in_order_and_only_the_first_lines_of_status() -> None:
    played, lines = rebooted("reboot-approved")
    assert {agent for _, agent, _ in lines} == {"rebooter", "plan", "reconcile", "status"}
    assert {node for node, _, _ in lines} == {""}
    # The rebooter releases the slot after a reconcile has loaded the driver: both run at that time.
    shown = [f"{agent}: {words}" for _, agent, words in lines]
    loaded = [at for at, line in enumerate(shown) if line.startswith("reconcile: ") and "load drv_pcie_host" in line]
    ended = [at for at, line in enumerate(shown) if line.startswith("rebooter: ") and "complete the reboot" in line]
    assert loaded[0] < ended[0]
    assert sum("approve-reboot=true" in title for title, *_ in played.chapters) == 1
    status = [words for _, agent, words in lines if agent == "status"]
    assert status[0].startswith("reboot-required")
    assert any("Approve the reboot" in words for words in status)
    assert len(status) <= 4


def test_with_two_nodes_each_line_and_each_change_names_its_node() -> None:
    played, lines = rebooted("reboot-one-slot")
    nodes = {"sandbox-node", "sandbox-node-2"}
    assert {node for node, _, _ in lines} == nodes
    for node in nodes:
        times = [MOMENT.match(words) for who, agent, words in lines if (who, agent) == (node, "rebooter")]
        assert len([one for one in times if one is not None]) > 3
    changes = [text for text in played.texts if "reboot-in-progress" in text]
    assert {text.partition(": ")[0] for text in changes} == nodes
    assert sum("its first lines" in title for title, *_ in played.chapters) == 1, "both nodes show the same"


# Vendors: the order of modules, what is paused and restored, and the probe.

VENDORS = {scenario.name: scenario for scenario in VENDOR_SCENARIOS}
WRONG = ("nothing happens",)

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
"""Expected changes of labels, cordon and pods besides journal, state and the mark of the cordon."""

PROBED = {
    "amd-reboot": "1 device(s) listed",
    "tenstorrent-upgrade": "1 device(s) answering",
    "gaudi-upgrade": "1 device(s) listed",
    "furiosa-upgrade": "1 device(s) alive",
}


@pytest.fixture(scope="module", params=VENDORS)
def vendor(request: pytest.FixtureRequest) -> Played:
    """A scenario that is checked against a wrong kernel log."""
    played = Played()
    played.report = run_scenario(replace(VENDORS[request.param], kernel=WRONG), played)
    return played


def test_the_modules_go_and_come_in_the_vendors_order(vendor: Played) -> None:
    kernel = VENDORS[vendor.report.scenario.name].kernel
    assert vendor.report.problems == [f"the kernel reports {list(kernel)}, expected {list(WRONG)}"]


def test_what_is_paused_is_restored_around_the_swap(vendor: Played) -> None:
    name, texts = vendor.report.scenario.name, vendor.texts
    keys = builtin()[VENDORS[name].profile].keys
    apart = (keys.journal, keys.cordon, keys.state, keys.upgrade_state, "module ", "journal ", "outcome ")
    seen = [
        "pod tt-telemetry" + text[text.index(" is ") :] if text.startswith("pod tt-telemetry-") else text
        for text in texts
        if not text.startswith(apart)
        and " sees a device" not in text
        and text not in (("node cordoned", "node uncordoned") if name != "gaudi-upgrade" else ())
    ]
    assert seen == SWITCHED[name]
    taken, *_, back = (at for at, text in enumerate(texts) if not text.startswith(("module ", name)))
    swap = [at for at, text in enumerate(texts) if text.startswith("module ")]
    assert taken < swap[0]
    assert swap[-1] < back


def test_the_vendors_own_parser_finds_the_device_healthy(vendor: Played) -> None:
    title, headline, *lines = vendor.chapters[-1]
    assert title == "driver-manager status --probe"
    assert headline.startswith("ready since ")
    healthy = f"(probe: healthy: {PROBED[vendor.report.scenario.name]}, sampled "
    assert any(healthy in line for line in lines)
    assert any(line.split() == ["journal", "none:", "the", "node", "is", "not", "taken"] for line in lines)


def test_a_driver_that_only_a_reboot_changes_is_never_unloaded(vendor: Played) -> None:
    is_reboot = VENDORS[vendor.report.scenario.name].interference is Interference.REBOOT_AFTER
    assert any(text.endswith(" unloaded") for text in vendor.texts) is not is_reboot
    assert vendor.report.exit_codes == ([9, 0] if is_reboot else [0])


def test_the_firmware_path_of_the_profile_is_set_before_the_load(vendor: Played) -> None:
    firmware = builtin()[VENDORS[vendor.report.scenario.name].profile].paths.firmware
    lines = [line for chapter in vendor.chapters for line in chapter]
    shown = [at for at, line in enumerate(lines) if "] " in line and "firmware_class.path" in line]
    assert bool(shown) is bool(firmware)
    for at in shown:
        assert firmware in lines[at]
        assert any("] load " in line for line in lines[at:])
