"""The first line of `status`: what can be seen now counts more than what the Node shows of the last run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain import node_state
from driver_manager.domain.errors import ApiRefused, ConfigError, ManagerError, PreflightFailed
from driver_manager.domain.health.watch import HealthState
from driver_manager.domain.host import RECOVERY, UPGRADE_REASON, Marker, Module
from driver_manager.domain.node_state import LastOutcome, NodeState
from driver_manager.domain.observation import Observation, ObservedPart
from driver_manager.domain.pci import PciBus
from driver_manager.domain.status import DeviceHealth, StatusFacts, attention, headline
from driver_manager.domain.swap.steps import Decision, Plan
from tests.support.fakes.builders import ASCEND, DRIVER, PROFILE, driver_pod, host, journal, node, observation, pod
from tests.support.fakes.pci import VFIO_DRIVER, function

SINCE, NOW_S = "2026-01-02T01:00:00Z", 1_767_322_800.0
CURRENT = Plan(Decision.CURRENT, "driver is current: digest ab12, version 1.0, loaded since this boot")
REFUSED = PreflightFailed("preflight: no module for this kernel", "Build one.")
TAKEN = journal(begin="2026-01-02T02:00:00Z", step="take node")
WEDGE = DeviceHealth("health-watch", HealthState.WEDGED, "rbln0 is gone", since_s=NOW_S - 60.0)
NO_NODE = {ObservedPart.NODE: ApiRefused("the API server refused to get nodes (403)", "Give this account the verb.")}


def shows(word: str, code: int = 0, **more: Any) -> Any:
    """A Node that shows this word, and this outcome of the last run."""
    keys = more.pop("profile", PROFILE).keys
    outcome = LastOutcome(
        more.pop("outcome", NodeState(word)), code, more.pop("what", "it was so"), since=SINCE, ended=SINCE
    )
    notes = {keys.last_outcome: node_state.encode(outcome)}
    return node({keys.state: word, **more.pop("labels", {})}, annotations=notes, **more)


def facts(obs: Observation | None = None, **more: Any) -> StatusFacts:
    known: dict[str, Any] = {"obs": obs or observation(), "profile": PROFILE, "verdict": CURRENT, "now_s": NOW_S}
    return StatusFacts(**{**known, **more})


def seen(**fields: Any) -> Observation:
    """On the node, with the driver loaded, unless `fields` say otherwise."""
    return observation(**{"digest": "ab12", **fields})


ASCEND_LOADED = {"drv_pcie_host": Module("drv_pcie_host", "25.2.0")}


def upgrade_marker(reason: str = UPGRADE_REASON, boot: str = "boot-1") -> Marker:
    return Marker(reason, boot, written_s=1_767_315_600)


TABLE: tuple[tuple[str, StatusFacts, NodeState | None, str, str], ...] = (
    ("nothing is wrong", facts(seen()), NodeState.READY, "", "driver is current: digest ab12"),
    ("and the Node says so", facts(seen(node=shows("ready"))), NodeState.READY, SINCE, "driver is current"),
    (
        "another driver is wanted",
        facts(seen(node=shows("ready")), verdict=Plan(Decision.REPLACE, "a reinstall was forced")),
        NodeState.READY,
        SINCE,
        "driver 1.0 is loaded; the next run replaces it: a reinstall was forced",
    ),
    (
        "a run would be refused",
        facts(seen(node=shows("ready", what="done: driver 1.0 loaded")), verdict=REFUSED),
        NodeState.READY,
        SINCE,
        "done: driver 1.0 loaded",
    ),
    (
        "a run is at work",
        facts(seen(node=shows("upgrading", outcome=NodeState.READY), journal=TAKEN, owner_alive=True)),
        NodeState.UPGRADING,
        TAKEN.begin,
        "pod rbln-system/driver-a has taken the node; last step noted: take node",
    ),
    (
        "a run of an older version is at work",
        facts(seen(journal=journal(), owner_alive=True)),
        NodeState.UPGRADING,
        "",
        "pod rbln-system/driver-a has taken the node",
    ),
    (
        "a run was killed",
        facts(seen(node=shows("upgrading", outcome=NodeState.READY), journal=TAKEN, owner_alive=False)),
        NodeState.HELD,
        TAKEN.begin,
        "pod rbln-system/driver-a took the node and ended without releasing it",
    ),
    (
        "a run holds the node, its pod in a crash loop",
        facts(seen(node=shows("held", 5, what="it did not load"), journal=TAKEN, owner_alive=True)),
        NodeState.HELD,
        SINCE,
        "exit 5: it did not load",
    ),
    (
        "the journal cannot be read",
        facts(seen(node=shows("held", 2)), missing={ObservedPart.JOURNAL: ConfigError("the journal is garbage", "")}),
        NodeState.HELD,
        SINCE,
        "the journal is garbage",
    ),
    (
        "the last run failed",
        facts(seen(node=shows("failed", 3, what="pods would not leave"))),
        NodeState.FAILED,
        SINCE,
        "exit 3: pods would not leave",
    ),
    (
        "seen from a laptop",
        facts(seen(host=None, node=shows("failed", 3))),
        NodeState.FAILED,
        SINCE,
        "exit 3: it was so",
    ),
    (
        "a wedge, by health-watch's record",
        facts(seen(node=shows("ready")), health=WEDGE),
        NodeState.WEDGED,
        "2026-01-02T02:59:00Z",
        "the driver does not serve its devices: rbln0 is gone",
    ),
    (
        "a wedge, by the marker that is put aside",
        facts(seen(), health=DeviceHealth(is_withdrawn=True)),
        NodeState.WEDGED,
        "",
        "the driver does not serve its devices",
    ),
    (
        "a wedge, seen from a laptop",
        facts(seen(host=None, node=shows("wedged", outcome=NodeState.READY))),
        NodeState.WEDGED,
        "",
        "the driver does not serve its devices",
    ),
    (
        "a wedge that is over, and the label is not yet",
        facts(
            seen(node=shows("wedged", outcome=NodeState.READY)),
            health=DeviceHealth("health-watch", HealthState.HEALTHY),
        ),
        NodeState.READY,
        SINCE,
        "driver is current",
    ),
    (
        "a reboot for an upgrade",
        facts(seen(host=host(marker=upgrade_marker())), profile=ASCEND, reboot_waits_for="waits for approval"),
        NodeState.REBOOT_REQUIRED,
        "2026-01-02T01:00:00Z",
        "only a reboot brings the wanted driver; waits for approval",
    ),
    (
        "a reboot for a recovery",
        facts(seen(host=host(marker=upgrade_marker(RECOVERY))), profile=ASCEND, health=WEDGE),
        NodeState.REBOOT_REQUIRED,
        "2026-01-02T01:00:00Z",
        "the driver does not serve its devices, and only a reboot helps: rbln0 is gone",
    ),
    (
        "a marker of an earlier boot",
        facts(seen(host=host(marker=upgrade_marker(boot="boot-0"), modules=ASCEND_LOADED)), profile=ASCEND),
        NodeState.READY,
        "",
        "driver is current",
    ),
    (
        "a reboot, seen from a laptop",
        facts(seen(host=None, node=shows("reboot-required", 9, profile=ASCEND)), profile=ASCEND),
        NodeState.REBOOT_REQUIRED,
        SINCE,
        "only a reboot brings the wanted driver",
    ),
    (
        "no driver yet, and its pod is there",
        facts(seen(host=host(modules={}), pods=(pod("driver-x", DRIVER),), own_pod=None)),
        NodeState.UPGRADING,
        "",
        "no driver is loaded yet; driver pod rbln-system/driver-x will load it",
    ),
    (
        "no driver, and nobody to load it",
        facts(seen(host=host(modules={}), own_pod=None)),
        NodeState.FAILED,
        "",
        "no driver is loaded, and no driver pod is on this node",
    ),
    (
        "the Node out of sight",
        facts(seen(), missing=NO_NODE, verdict=NO_NODE[ObservedPart.NODE]),
        None,
        "",
        "the Node cannot be read; the facts of the host are below",
    ),
    (
        "the Node out of sight, and a wedge",
        facts(seen(), missing=NO_NODE, verdict=NO_NODE[ObservedPart.NODE], health=WEDGE),
        NodeState.WEDGED,
        "2026-01-02T02:59:00Z",
        "the driver does not serve its devices: rbln0 is gone",
    ),
    (
        "nothing known from a laptop",
        facts(seen(host=None)),
        None,
        "",
        "the node is not taken, and no run has reported its outcome on this Node",
    ),
    (
        "all devices are with virtual machines",
        facts(seen(host=host(modules={}, digest=None, bus=PciBus((function(driver=VFIO_DRIVER),))))),
        NodeState.READY,
        "",
        "1 device(s) on vfio, for virtual machines",
    ),
    (
        "one device is between two drivers",
        facts(seen(host=host(modules={}, digest=None, bus=PciBus((function(driver=VFIO_DRIVER), function(1)))))),
        NodeState.UPGRADING,
        "",
        "no driver is loaded yet",
    ),
)


@pytest.mark.parametrize(("found", "state", "since", "why"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_headline(found: StatusFacts, state: NodeState | None, since: str, why: str) -> None:
    first = headline(found)
    assert (first.state, first.since) == (state, since)
    assert first.why.startswith(why), first.why


@pytest.mark.parametrize("found", [row[1] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_state_that_needs_a_hand_says_what_to_do(found: StatusFacts) -> None:
    first = headline(found)
    items = attention(found, first)
    assert len({one.what for one in items}) == len(items), "said twice"
    if first.state in node_state.NEEDS_HAND:
        assert items
        assert items[0].kind in ("held", "interrupted", "journal", "failed", "wedge", "reboot")
        assert items[0].remedy or items[0].kind in ("journal", "failed")
    if found.verdict is CURRENT and not found.missing and first.state in (NodeState.READY, NodeState.UPGRADING):
        assert items == ()


WORDS = st.none() | st.sampled_from([*(state.value for state in NodeState), "dancing"])
ERRORS: st.SearchStrategy[dict[ObservedPart, ManagerError]] = st.dictionaries(
    st.sampled_from(ObservedPart), st.just(ConfigError("out of sight", "Mount it."))
)


@given(
    word=WORDS,
    outcome=st.none() | st.sampled_from(NodeState),
    is_taken=st.booleans(),
    lives=st.none() | st.booleans(),
    is_here=st.booleans(),
    is_loaded=st.booleans(),
    marker=st.none() | st.sampled_from([upgrade_marker(), upgrade_marker(RECOVERY, "boot-0")]),
    health=st.builds(DeviceHealth, state=st.none() | st.sampled_from(HealthState), is_withdrawn=st.booleans()),
    missing=ERRORS,
    profile=st.sampled_from([PROFILE, ASCEND]),
)
def test_whatever_is_seen_there_is_one_headline_and_one_list(**drawn: Any) -> None:
    keys = drawn["profile"].keys
    labels = {keys.state: drawn["word"]} if drawn["word"] else {}
    told = drawn["outcome"]
    notes = (
        {keys.last_outcome: node_state.encode(LastOutcome(told, 5, "what", since=SINCE, ended=SINCE))} if told else {}
    )
    there = host(modules={} if not drawn["is_loaded"] else host().modules, marker=drawn["marker"])
    obs = observation(
        node=node(labels, annotations=notes),
        host=there if drawn["is_here"] else None,
        journal=TAKEN if drawn["is_taken"] else None,
        owner_alive=drawn["lives"],
    )
    found = facts(obs, profile=drawn["profile"], health=drawn["health"], missing=drawn["missing"])
    first = headline(found)
    assert first.why
    assert all(one.kind and one.what for one in attention(found, first))
    if drawn["is_taken"]:
        assert first.state in (NodeState.HELD, NodeState.UPGRADING)
    if drawn["health"].is_wedged and first.state is NodeState.READY:
        raise AssertionError("a wedge is never called ready")


def test_a_reserved_word_of_the_driver_pod_is_not_its_own_run() -> None:
    assert [str(one) for one in replace(facts(), obs=observation(own_pod=driver_pod())).driver_pods] == [
        "rbln-system/driver-a"
    ]
