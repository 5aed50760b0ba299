"""Whole runs on a node whose journal was forged, or is of an older version: labels are restored, nothing is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.domain import host_record
from driver_manager.domain.errors import ConfigError, ExitCode
from driver_manager.domain.events import JOURNAL_FIELD_IGNORED
from driver_manager.domain.host_record import HostRecord
from driver_manager.domain.journal import Journal, Owner, encode
from driver_manager.domain.node import Pod
from driver_manager.domain.observation import Loader, Policy
from driver_manager.domain.profile import RUN_RECORD
from driver_manager.domain.swap.retry_wait import FIRST_S
from tests.support.fakes.builders import ASCEND, OLD_DIGEST, PAUSED, PLUGIN, PROFILE, journal, pod
from tests.support.fakes.scenarios import GATE, LABELS, OLD_ROOT, SCENARIOS, made
from tests.support.fakes.world import World

KEY = PROFILE.keys.journal
GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("journal-v*.json"))
EVIL = "/var/lib/kubelet/pods/6f1c/volumes/kubernetes.io~empty-dir/scratch"
GONE = Owner("rbln-system/driver-gone", "dead")
RUN, SERVICE = "boot-1:1:99:99", "rbln_daemon.service"
SERVICES, BACK = "replace_with_host_services", "the old driver 1.0 is loaded again"


def forged(world: World, body: Mapping[str, Any]) -> World:
    """`world` with a journal of these fields on its Node. It is of this boot, and asks for nothing else."""
    owner = {"pod": GONE.pod, "uid": GONE.pod_uid}
    plain = {"v": 1, "bootId": world.host.boot_id, "owner": owner, "labels": {}, "cordoned": False}
    world.cluster.edit(annotations={world.profile.keys.journal: json.dumps({**plain, **body})})
    return world


def ignored(world: World) -> list[str]:
    """The fields of the journal that Events name."""
    return [text.split()[3] for reason, text, warning in world.cluster.posted if reason == JOURNAL_FIELD_IGNORED]


def failing() -> World:
    """The new driver does not load."""
    return made("replace_by_manager", broken={"2.0"})


def old(**fields: Any) -> dict[str, Any]:
    return {"version": "1.0", "root": OLD_ROOT, "modules": ["rebellions"], "digest": OLD_DIGEST, **fields}


def records(world: World) -> dict[str, str]:
    return {path: text for path, text in world.host.files.items() if RUN_RECORD in path}


def the_record(world: World) -> HostRecord:
    (text,) = records(world).values()
    return host_record.decode(text)


@pytest.mark.parametrize("scenario", [SCENARIOS["current"], SCENARIOS["replace_by_manager"], failing])
@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"services": ["reboot.target", "debug-shell.service"]}, "services"),
        ({"services": [SERVICE]}, "services"),
        ({"removed": ["dccp", "-C/tmp", "--all"]}, "removed"),
        ({"driver": old(root=EVIL)}, "driver"),
        ({"driver": old(root="", modules=["rebellions", "../../evil", "-C/x", "usb_storage"])}, "driver.modules"),
        ({"driver": old(parameters={"rebellions.x": "1\ninstall rebellions /usr/bin/touch /x"})}, "driver.parameters"),
        ({"devices": [{"address": "0000:00:03.0", "override": "evil", "virtualCount": 7}]}, "devices"),
        ({"hostRecord": RUN, "services": ["reboot.target"]}, "hostRecord"),
    ],
)
def test_a_forged_journal_does_nothing_and_is_named(
    scenario: Callable[[], World], body: dict[str, Any], named: str
) -> None:
    honest, world = scenario(), forged(scenario(), body)
    world.host.offers[EVIL] = "1.0"
    world.run()
    assert named in ignored(world)
    honest.run()
    assert set(world.killer.effects) <= set(honest.killer.effects) | {"event", "patch"}, body
    assert (world.host.given, world.state().labels) == (honest.host.given, LABELS)


def test_a_forged_journal_sets_no_label_and_keeps_none_paused() -> None:
    world = made("current")
    tier = "node-restriction.kubernetes.io/tier"
    world.cluster.edit({PLUGIN: PAUSED, tier: "false", "example.com/foo": PAUSED})
    labels = {PLUGIN: "x y\x1b[31m" + "z" * 80, "example.com/foo": "chosen"}
    assert forged(world, {"v": 2, "gates": {tier: "true"}, "labels": labels}).run() is not None
    assert world.state().labels == {**LABELS, tier: "false", "example.com/foo": PAUSED}
    assert KEY not in world.state().annotations
    assert sorted(ignored(world)) == ["gates", "labels"]
    assert all(text.isprintable() for _, text, _ in world.cluster.posted)


@pytest.mark.parametrize("body", [None, {"cordoned": True}, {"cordoned": True, "cordonManager": "kubectl-cordon"}])
def test_no_mark_and_no_journal_lifts_an_administrators_cordon(body: dict[str, Any] | None) -> None:
    world = made("current")
    world.cluster.edit(cordon=True, annotations={PROFILE.keys.cordon: "true"})
    world.cluster.current = replace(world.node, cordon_manager="kubectl-cordon")
    if body is not None:
        forged(world, body)
    assert world.run() is not None
    assert world.state().unschedulable


@pytest.mark.parametrize(
    "owner",
    [7, {}, {"pid": "7"}, {"pod": "a", "uid": "b"}, {"pod": "../x", "uid": "driver-b"}, {"pod": "n/p", "uid": "a\nb"}],
)
def test_a_bad_owner_has_ended(owner: Any) -> None:
    world = forged(made("current"), {"owner": owner})
    world.ended()
    assert (KEY in world.state().annotations, ignored(world)) == (False, ["owner"])


@pytest.mark.parametrize(
    ("there", "code"),
    [
        (pod("db", namespace="tenant"), ExitCode.DONE),
        (pod("db", PLUGIN, namespace="tenant"), ExitCode.DONE),
        (pod("db", programs=("driver-manager",)), ExitCode.OWNED_ELSEWHERE),
        (pod("db", owner_kind="DriverRollout"), ExitCode.OWNED_ELSEWHERE),
    ],
)
def test_a_pod_that_does_not_run_the_manager_keeps_no_node(there: Pod, code: ExitCode) -> None:
    world = forged(made("current"), {"owner": {"pod": str(there), "uid": there.uid}})
    world.cluster.add_pod(there)
    world.ended(code)


def test_a_journal_that_cannot_be_read_ends_the_run() -> None:
    for text in ("", "null", "{", '{"v":99}', '{"v":1}'):
        world = made("current")
        world.cluster.edit(annotations={KEY: text})
        world.ended(ExitCode.USAGE)


# what only the record on the host may say


def never_unloaded(**changes: Any) -> World:
    """The host has loaded a driver that only a reboot replaces, and another one is wanted."""
    world = World({}, Policy(loader=Loader.MANAGER, no_wait=True), profile=ASCEND, driver_root="/opt/new", gate="x")
    world.given(loaded=dict.fromkeys(ASCEND.modules.roots, "1.0"), offers={"/opt/new": "2.0"})
    return world.given(**changes)


ONLY_VERSION = {"driver": {"version": "1.0"}, "hostRecord": RUN}


@pytest.mark.parametrize("body", [ONLY_VERSION, {"driver": old(root=EVIL)}])
def test_a_driver_that_only_the_node_names_is_no_trace_of_an_installer(body: dict[str, Any]) -> None:
    own = World(LABELS, Policy(loader=Loader.CONTAINER))
    own.given(loaded={"rebellions": "1.0"}, host_driver="/lib/modules/x/rebellions.ko")
    world = forged(own, body)
    world.ended(ExitCode.STANDING_DOWN)
    assert (set(world.killer.effects), world.host.loaded) == ({"event", "patch"}, {"rebellions": "1.0"})


@pytest.mark.parametrize("body", [{}, ONLY_VERSION])
def test_a_forged_journal_makes_no_driver_a_half_loaded_one(body: dict[str, Any]) -> None:
    world = forged(never_unloaded(), body)
    world.ended(ExitCode.REBOOT_REQUIRED)
    assert ASCEND.paths.reboot_marker in world.host.files
    assert not [effect for effect in world.killer.effects if effect.startswith("load ")]


def test_a_run_that_dies_while_it_loads_into_a_fresh_kernel_is_gone_on_from() -> None:
    undisturbed = never_unloaded(loaded={})
    undisturbed.ended()
    first, second = [at for at, effect in enumerate(undisturbed.killer.effects) if effect == "patch"][:2]
    for at in range(first, second):
        world = never_unloaded(loaded={}).killed(at)
        world.ended()
        assert records(world) == {}, undisturbed.killer.effects[at]


def test_a_forged_journal_neither_replaces_the_old_driver_nor_skips_a_wait_after_a_failure() -> None:
    for world in (failing(), forged(failing(), {"driver": {"version": "6.6"}, "hostRecord": "x"})):
        driver = the_record(world.killed("unload rebellions")).driver
        assert driver is not None
        assert (driver.version, driver.root) == ("1.0", OLD_ROOT)
        world.ended(ExitCode.MODULE_FAILED, BACK)
    failed_s = world.clock.monotonic()
    forged(world, {}).again(ExitCode.MODULE_FAILED)
    assert world.clock.monotonic() - failed_s >= FIRST_S


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_a_journal_without_its_record_restores_labels_and_cordon_and_nothing_else(path: Path) -> None:
    body = json.loads(path.read_text())
    world, gates = made("replace_with_more_of_the_profile"), body.get("gates", {})
    deploy = replace(world.profile.deploy, on_unless_false=(GATE, *gates))
    world.given(profile=replace(world.profile, deploy=deploy))
    world.host.put_driver("2.0", world.digest, peer=False)  # nothing is to be replaced
    del world.host.files[PROFILE.paths.ready_marker]
    for key, value in body["labels"].items():
        world.cluster.edit({key: PAUSED if value == "true" else f"{value}_{PAUSED}"})
    world.cluster.edit(dict.fromkeys(gates, "false"), cordon=body["cordoned"] or None)
    world.cluster.edit(annotations={KEY: path.read_text(), PROFILE.keys.cordon: "true"})
    if body.get("cordonManager"):
        world.cluster.current = replace(world.node, cordon_manager=body["cordonManager"])
    world.ended()
    state = world.state()
    assert {key: state.labels.get(key) for key in body["labels"]} == body["labels"]
    assert {key: state.labels.get(key) for key in gates} == gates
    assert (state.unschedulable, KEY in state.annotations) == (False, False)
    assert set(world.killer.effects) <= {"patch", "event"}
    left = {"services", "removed", "devices"} & body.keys() if "hostRecord" not in body else set()
    driver = {"driver"} if (body.get("driver") or {}).get("modules") else set()
    assert set(ignored(world)) >= left | ({"kmm"} & body.keys()) | driver
    events = " ".join(text for _, text, _ in world.cluster.posted)
    assert all(name in events for name in body.get("services", ())), "what is not restored is named"


def test_the_record_is_there_before_the_node_names_it_and_until_it_names_it_no_more() -> None:
    world = made(SERVICES)
    world.ended()
    effects = [effect.split()[0] + (" record" if RUN_RECORD in effect else "") for effect in world.killer.effects]
    assert [one for one in effects if one.endswith("record") or one == "patch"] == [
        "write record", "patch", "patch", "remove record"
    ]  # fmt: skip
    assert records(world) == {}
    world = made(SERVICES).killed(1)
    assert (len(records(world)), world.is_released) == (1, True)


def test_killed_after_the_unload_the_next_run_knows_from_the_record_what_to_undo() -> None:
    world = made(SERVICES, broken={"2.0"}).killed("unload rebellions")
    written = json.loads(world.state().annotations[KEY])
    assert (written["v"], written["driver"]) == (3, {"version": "1.0"})
    assert not {"services", "removed", "devices"} & written.keys()
    world.ended(ExitCode.MODULE_FAILED, BACK)
    assert (world.host.services, records(world)) == ({SERVICE: True}, {})


def current_after(held: Journal, **change: Any) -> World:
    """A current driver; a run that has ended left this journal, and its record with a change."""
    world = made("current")
    world.cluster.edit(annotations={KEY: encode(held)})
    text = json.loads(host_record.encode(host_record.of(held)))
    world.host.files[PROFILE.paths.run_record(RUN)] = json.dumps({**text, **change})
    return world


@pytest.mark.parametrize(
    "change",
    [{}, {"run": "another"}, {"bootId": "boot-0"}, {"schema": 9}, {"services": 7}],
    ids=["none", "run", "boot", "version", "type"],
)
def test_a_record_of_another_run_or_boot_undoes_nothing(change: dict[str, Any]) -> None:
    world = current_after(journal(owner=GONE, labels={}, services=(SERVICE,), record=RUN), **change)
    world.run()
    assert (f"start {SERVICE}" in world.killer.effects) is not bool(change)
    assert ignored(world) == (["hostRecord"] if change else [])
    assert change or records(world) == {}


def test_a_record_asks_for_nothing_that_the_profile_does_not_have() -> None:
    world = current_after(journal(owner=GONE, labels={}, services=("reboot.target",), removed=("dccp",), record=RUN))
    world.run()
    assert sorted(ignored(world)) == ["removed", "services"]
    assert not [effect for effect in world.killer.effects if "reboot.target" in effect or "dccp" in effect]


def test_a_record_that_cannot_be_written_leaves_the_node_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    world = made("replace_by_manager")
    before = world.state()

    def refused(path: str, text: str, *, is_secret: bool = False) -> None:
        raise ConfigError(f"cannot write {path}", "Mount it.")

    monkeypatch.setattr(world.host, "write_text", refused)
    world.ended(ExitCode.USAGE)
    assert (world.is_released, world.state().modules) == (True, before.modules)


def half_done() -> World:
    """A run was killed after it had stopped the service and unloaded the driver."""
    return made(SERVICES).killed("unload rebellions")


def without_journal(world: World) -> World:
    world.cluster.edit(annotations={KEY: None})
    return world


@pytest.mark.parametrize("lose", [without_journal, lambda world: forged(world, {})], ids=["deleted", "replaced"])
@pytest.mark.parametrize("broken", [set(), {"2.0"}])
def test_a_record_that_no_journal_names_is_undone_and_removed(lose: Callable[[World], World], broken: set[str]) -> None:
    world = lose(half_done().given(broken=broken))
    assert world.run() is not None
    assert (world.host.services, records(world)) == ({SERVICE: True}, {})
    assert world.host.loaded["rebellions"] == ("1.0" if broken else "2.0")
    (warning,) = [text for text in world.reporter.warnings if "does not name" in text]
    assert f"start {SERVICE}, go back to driver 1.0" in warning
    world.next_process()
    world.run()
    assert not any(value.endswith(PAUSED) for value in world.state().labels.values())


def test_the_record_of_a_run_that_lives_is_left_alone() -> None:
    world = half_done()
    record = the_record(world)
    assert record.owner is not None
    world.running.add(record.owner)
    without_journal(world).run()
    assert host_record.encode(record) in records(world).values()
    assert world.host.services == {SERVICE: False}
    assert not [text for text in world.reporter.warnings if "does not name" in text]


def test_a_record_that_outlived_the_release_does_not_choose_the_driver_to_go_back_to() -> None:
    world = made(SERVICES)
    world.killed(f"remove {PROFILE.paths.run_record(world.process.process)}", after=False)
    assert KEY not in world.state().annotations
    record, obs = the_record(world), world.observe()
    assert record.driver is not None
    assert obs.left == (record,)
    assert obs.journal is not None
    assert (obs.journal.driver, obs.journal.services) == (None, record.services)


def test_a_record_of_another_boot_that_no_journal_names_is_not_undone() -> None:
    world = half_done()
    (path,) = records(world)
    world.host.files[path] = json.dumps({**json.loads(world.host.files[path]), "bootId": "boot-0"})
    without_journal(world).run()
    assert world.host.services == {SERVICE: False}
