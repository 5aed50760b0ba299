"""A journal is an annotation: each field that no run of the profile can have written is ignored, and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.domain import host_record
from driver_manager.domain import journal as journals
from driver_manager.domain.journal import Journal, OldDriver, Owner, cleared_by
from driver_manager.domain.node import Pod
from driver_manager.domain.outage import Outage, OutagePart
from driver_manager.domain.pods.journal_check import Checked, checked, runs_manager, with_left, with_record
from tests.support.fakes import builders
from tests.support.fakes.builders import DRIVER, EXPORTER, PAUSED, PLUGIN, PROFILE, driver_pod, pod
from tests.support.fakes.scenarios import GATE, LONG_VALUE

MODULES = replace(PROFILE.modules, keep_parameters=("rebellions.dep*", "usb*"), conflicting_removable=("generic_npu",))
RICH = replace(PROFILE, modules=MODULES, deploy=replace(PROFILE.deploy, on_unless_false=(GATE,)))
OWNER = Owner("ns/pod", "uid-1", 7, 1, 2, "boot-1")
DRIVER_BEFORE = OldDriver("1.0", "/opt/old", ("rebellions", "rebellions_core"), "ab12", {"rebellions.depth": "7 x"})
HONEST = Journal(
    owner=OWNER,
    boot_id="boot-1",
    labels={PLUGIN: "true", EXPORTER: "gold", DRIVER: "true"},
    gates={GATE: None},
    cordoned=True,
    driver=DRIVER_BEFORE,
    services=("rbln_daemon.service",),
    removed=("generic_npu",),
    cordon_manager="driver-manager",
    node_uid="uid-1",
    step="take node",
    begin="2026-01-01T00:00:00Z",
    cleared="7d9c5b8f6",
    window=Outage(1.0, 2.0),
)
NOW = {PLUGIN: PAUSED, EXPORTER: f"gold_{PAUSED}", DRIVER: PAUSED, "example.com/foo": PAUSED}
LINES = "two\nlines"


def found(journal: Journal, now: dict[str, str] = NOW) -> Checked:
    return checked(journals.Written(journal), now, RICH)


def test_nothing_of_an_honest_journal_is_refused_and_a_label_that_was_edited_meanwhile_is_no_forgery() -> None:
    for now in (NOW, {PLUGIN: "silver", EXPORTER: "paused-for-another"}):
        assert found(HONEST, now) == Checked(HONEST)


def driver(**fields: Any) -> dict[str, Any]:
    return {"driver": replace(DRIVER_BEFORE, **fields)}


EVICT, LOAD = OutagePart.EVICT, OutagePart.LOAD


def test_a_field_that_no_run_can_have_written_is_ignored_and_named() -> None:
    rows: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("services", {"services": ("reboot.target", "rbln_daemon.service")}, {"services": ("rbln_daemon.service",)}),
        ("services", {"services": ("--root=/x",)}, {"services": ()}),
        ("removed", {"removed": ("dccp",)}, {"removed": ()}),
        ("removed", {"removed": ("-C/tmp/x", "generic_npu")}, {"removed": ("generic_npu",)}),
        ("removed", {"removed": ("rebellions",)}, {"removed": ()}),
        *(
            ("gates", {"gates": gates}, {"gates": {}})
            for gates in ({"example.com/tier": "true"}, {GATE: "false"}, {GATE: "x y"})
        ),
        ("driver.modules", driver(modules=("rebellions", "usb_storage")), driver(modules=("rebellions",))),
        ("driver.modules", driver(modules=("../../evil", "-C/x", "rebellions_a b")), driver(modules=())),
        *(
            ("driver.parameters", driver(parameters={name: value}), driver(parameters={}))
            for name, value in (
                *(("rebellions.depth", "1\ninstall rebellions x"), ("rebellions.depth\ninstall x", "1")),
                *(("rebellions.depth", '1" x="'), ("rebellions.speed", "1"), ("usbcore.quirks", "1")),
            )
        ),
        *(("driver.root", driver(root=root), driver(root="")) for root in ("/opt/\nx", "opt", "/opt/../tmp")),
        ("driver.digest", driver(digest=LINES), driver(digest="")),
        ("driver.version", driver(version="1\x1b[31m"), driver(version="")),
        *(
            ("owner", {"owner": owner}, {"owner": Owner()})
            for owner in (Owner("../x", "uid-1"), Owner("ns/pod", LINES), Owner(pid=-1), Owner(pid=2**40))
        ),
        ("bootId", {"boot_id": LINES}, {"boot_id": ""}),
        ("cordonManager", {"cordon_manager": LINES}, {"cordon_manager": ""}),
        *(("nodeUid", {"node_uid": "x" * 300}, {"node_uid": ""}), ("step", {"step": "\x1b[2J"}, {"step": ""})),
        *(("begin", {"begin": LINES}, {"begin": ""}), ("cleared", {"cleared": LINES}, {"cleared": ""})),
        *(
            ("window", {"window": window}, {"window": None})
            for window in (
                *(Outage(1e300, 1.0), Outage(0.0, 1e300), Outage(253_402_300_000.0, 1_000.0)),
                *(Outage(0.0, 1.0, {EVICT: 1.7e308}), Outage(0.0, 1.0, {EVICT: 1.7e308, LOAD: 1.7e308})),
            )
        ),
    ]
    for field, hostile, left in rows:
        result = found(replace(HONEST, **hostile))
        assert result.journal == replace(HONEST, **left), hostile
        assert [one.field for one in result.refused] == [field], hostile
        assert str(result.refused[0]).isprintable()


@pytest.mark.parametrize("request_to_kmm", [{"namespace": "a", "name": "b", "version": "1"}, None, "\x1b[31m", 7])
def test_a_request_to_kmm_is_named_and_the_rest_is_checked(request_to_kmm: Any) -> None:
    for owner, more in ((OWNER, []), (Owner("../x", "uid-1"), ["owner"])):
        text = json.dumps({**json.loads(journals.encode(replace(HONEST, owner=owner))), "kmm": request_to_kmm})
        result = checked(journals.decode(text), NOW, RICH)
        assert result.journal == replace(HONEST, owner=Owner() if more else owner)
        assert [one.field for one in result.refused] == ["kmm", *more]


def test_a_request_to_kmm_in_records_of_the_host_is_named_once() -> None:
    record = host_record.decode((Path(__file__).parents[1] / "golden/host-record-v1-kmm.json").read_text())
    assert record.services == ("rbln_daemon.service",)
    checks = Checked(replace(HONEST, record=record.run), (journals.KMM_REMOVED,))
    assert with_record(checks, record, record.boot_id, RICH).refused == (journals.KMM_REMOVED,)
    lost = with_left(Checked(HONEST), (record, record), builders.host(), RICH)
    assert lost.refused == (journals.KMM_REMOVED,)


def test_a_forged_label_keeps_none_paused_and_sets_none_and_the_others_keep_their_originals() -> None:
    others = ("node-restriction.kubernetes.io/tier", PROFILE.keys.skip, PROFILE.deploy.prefix + "a b", GATE)
    values = ("x y", "x" * 64, "\x1b[31m", "", "false", PAUSED, "silver")
    forged = [("example.com/foo", "chosen"), *((key, "true") for key in others), *((PLUGIN, value) for value in values)]
    for key, value in forged:
        result = found(replace(HONEST, labels={EXPORTER: "gold", key: value}))
        assert (result.journal, [one.field for one in result.refused]) == (HONEST, ["labels"]), (key, value)
    labels = {PLUGIN: LONG_VALUE, "example.com/foo": "x"}
    assert found(replace(HONEST, labels=labels), {PLUGIN: PAUSED}).journal.labels == {PLUGIN: LONG_VALUE}


def test_many_refused_values_are_one_short_line() -> None:
    (refused,) = found(replace(HONEST, services=tuple(f"{'x' * 500}\n{one}" for one in range(5000)))).refused
    assert len(str(refused)) < 1024
    assert str(refused).isprintable()


def test_a_profile_without_deploy_labels_takes_no_label() -> None:
    bare = replace(PROFILE, deploy=replace(PROFILE.deploy, prefix="", leave_last=("example.com/x",)))
    claims = replace(HONEST, labels={"kubernetes.io/hostname": "x", "example.com/x": "y"})
    assert checked(journals.Written(claims), {}, bare).journal.labels == {}


def test_only_a_pod_that_runs_the_manager_can_own_a_node() -> None:
    image, a_set, of_set = pod("other", images=("acme/tool:1", "manager:1")), {"controller": "set"}, "ReplicaSet"
    rows: list[tuple[Pod, Pod | None, bool]] = [
        *((pod("a", DRIVER), None, True), (pod("a", PROFILE.deploy.prefix + "vfio-manager"), None, True)),
        *((pod("a", PLUGIN), None, False), (pod("a", DRIVER, owner_kind=of_set), None, False)),
        (pod("a", **a_set), driver_pod(**a_set), True),
        (pod("a", **a_set, owner_kind=of_set), driver_pod(**a_set), False),
        (pod("a", controller=""), driver_pod(controller=""), False),
        (pod("a", owner_kind="DriverRollout"), None, True),
        *((image, driver_pod(images=("manager:1",)), True), (image, driver_pod(images=("manager:2",)), False)),
        *((image, None, False), (pod("a", programs=("sh", "driver-manager"), owner_kind=""), None, True)),
        (pod("a", programs=("sh",), owner_kind=""), None, False),
    ]
    assert [(there, own, runs_manager(there, own, PROFILE)) for there, own, _ in rows] == rows


def test_a_rollout_believes_a_cleared_node_of_a_well_formed_owner_only() -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        *(({}, "uid-1"), ({"cleared": ""}, ""), ({"cleared": LINES}, ""), ({"owner": 7}, ""), ({"v": 99}, "")),
        *(({"owner": {"pod": "x", "uid": "uid-1"}}, ""), ({"owner": {"pod": "ns/pod", "uid": "a\nb"}}, "")),
    ]
    body = json.loads(journals.encode(HONEST))
    assert [(change, cleared_by(json.dumps({**body, **change}))) for change, _ in rows] == rows
