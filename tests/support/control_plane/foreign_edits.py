"""The waits of a run, what others do to the node during each, and what must be left afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from driver_manager.sandbox import fake_tools
from tests.support.control_plane.api import ApiError, Json, repeated, wait_until
from tests.support.control_plane.kubelet import NEVER, create_operands
from tests.support.control_plane.processes import ForkedCommand
from tests.support.control_plane.runner import (
    ASCEND_OLD,
    CORDON,
    ENABLED,
    EVICT,
    JOURNAL,
    NEW,
    OLD,
    PAUSED,
    PREFIX,
    REQUESTED,
    SAFE_LOAD,
)
from tests.support.control_plane.scene import (
    DAEMON,
    DISCOVERY,
    DRIVER,
    EXPORTER,
    LABELS,
    OFF,
    PLUGIN,
    VALIDATOR,
    Left,
    NodeScene,
)
from tests.support.control_plane.workloads import Shape
from tests.support.fakes.pace import patient
from tests.support.selection import Share


@dataclass(frozen=True)
class Wait:
    """A wait of a run.

    `begin` starts a run on a scene, `log_line` shows the wait, `end` lets it go on. `has_journal`: the node is
    taken in it; `has_pause`: its labels are paused. `plans_again`: after it the run observes and plans again.
    """

    name: str
    begin: Callable[[NodeScene], ForkedCommand]
    log_line: str
    end: Callable[[NodeScene], None]
    has_journal: bool = True
    has_pause: bool = True
    plans_again: bool = False
    profile: str = "rebellions"

    def reach(self, scene: NodeScene) -> None:
        """Start a run, and return when it waits."""
        scene.run = self.begin(scene)
        scene.current.wait_log(self.log_line)


def _with_operand(scene: NodeScene) -> ForkedCommand:
    create_operands(scene.stack, scene.world.api, scene.node, ("device-plugin",))
    scene.labels = scene.node.labels()
    scene.node.kubelet.stop_after("device-plugin", NEVER)
    return scene.start()


def _with_workload(env: Mapping[str, str], scene: NodeScene) -> ForkedCommand:
    (pod,) = scene.pods.managed()
    scene.node.kubelet.stop_after(pod.key, NEVER)
    return scene.start(env=env)


def _with_holder(scene: NodeScene) -> ForkedCommand:
    scene.command_runner.hold_unread()
    return scene.start()


def _with_job(scene: NodeScene) -> ForkedCommand:
    scene.others.append(scene.pods.pod(Shape(labels={"kind": "job"}), owner=scene.pods.replica_set()))
    return scene.start(env={**EVICT, "WAIT_FOR_COMPLETION_SELECTOR": "kind=job"})


def _managed(scene: NodeScene) -> ForkedCommand:
    scene.annotate(**{ENABLED: "true"})
    scene.others.extend(scene.pods.managed())
    run = scene.start()
    wait_until(lambda: scene.node.annotations().get(REQUESTED) == "true", "the operator is asked")
    return run


def _safe(scene: NodeScene) -> ForkedCommand:
    run = scene.start("--safe-load")
    wait_until(lambda: scene.node.annotations().get(SAFE_LOAD) == scene.own.name, "the operator is asked")
    return run


def _free(scene: NodeScene) -> None:
    fake_tools.count(scene.command_runner.tree.root / "sys/module/rebellions", -1)


def _complete(scene: NodeScene) -> None:
    (job,) = scene.others
    job.api.patch(f"{job.path}/status", {"status": {"phase": "Succeeded"}})


def _move(scene: NodeScene) -> None:
    (pod,) = scene.others
    pod.api.delete(pod.path, grace_s=0)


def _allow(scene: NodeScene) -> None:
    if scene.world.api.list("/api/v1/nodes", fieldSelector=f"metadata.name={scene.node.name}"):
        scene.annotate(**{SAFE_LOAD: None})


def _for_a_reboot(scene: NodeScene) -> ForkedCommand:
    return scene.start(env={"DRIVER_LOAD": "container", "DRIVER_ROOT": ""})


def _terminate(scene: NodeScene) -> None:
    scene.current.terminate()


def _release(scene: NodeScene) -> None:
    scene.node.kubelet.release()


DRAIN = {"ENABLE_AUTO_DRAIN": "true", "DRAIN_TIMEOUT_SECONDS": "60"}

WAITS = (
    Wait("operands", _with_operand, "operand pod(s) to terminate", _release),
    Wait("eviction", partial(_with_workload, EVICT), "is being evicted", _release),
    Wait("drain", partial(_with_workload, DRAIN), "is being evicted", _release),
    Wait("device", _with_holder, "device in use", _free),
    Wait("completion", _with_job, "to complete", _complete, has_pause=False, plans_again=True),
    Wait("safe-load", _safe, "as it does when loading is safe", _allow, False, False, plans_again=True),
    Wait("operator", _managed, "until the operator has moved", _move, False, False, plans_again=True),
    Wait("reboot", _for_a_reboot, "hold until the node reboots", _terminate, False, False, profile="ascend"),
)


ADDED, FURTHER, FLAPPING = f"{PREFIX}added", f"{PREFIX}further", "team.example.com/flap"
FLAP_S = 0.05
ENDS_WITHIN_S = 5.0
"""After SIGTERM."""

KEPT_CHANGING = 8
ASKED_FOR_REBOOT = {
    "npu.openfuyao.com/reboot-required": "true",
    "npu.openfuyao.com/driver-upgrade-state": "node-reboot-required",
}
FRESH = {DRIVER: "true", PLUGIN: "false", "team.example.com/made": "again"}
Act = Callable[[NodeScene], contextlib.AbstractContextManager[None] | None]


STATES = {0: "ready", 9: "reboot-required"}


@dataclass(frozen=True)
class Expected:
    """What is left: `edits` over the labels before the run, None where the Node is gone; no state if `is_silent`."""

    code: int
    driver: str = NEW
    edits: Mapping[str, str | None] | None = field(default_factory=dict)
    is_cordoned: bool = False
    marks: tuple[str, ...] = ()
    is_silent: bool = False

    @property
    def state(self) -> str | None:
        return None if self.is_silent or self.edits is None else STATES.get(self.code, "failed")


@dataclass(frozen=True)
class Hand:
    """Another client. `act` may go on while its context lasts; `expect` is the oracle.

    Hands of one `bundle` act in the same run. `in_journal`, `in_pause`: only where there is one.
    """

    name: str
    act: Act
    expect: Callable[[Wait], Expected]
    bundle: str
    in_journal: bool = False
    in_pause: bool = False

    def fits(self, wait: Wait) -> bool:
        return (wait.has_journal or not self.in_journal) and (wait.has_pause or not self.in_pause)


def usual(wait: Wait, **edits: str | None) -> Expected:
    """The run ends as an undisturbed one, except for the edits."""
    if wait.name == "reboot":
        return Expected(9, ASCEND_OLD, {**edits, **ASKED_FOR_REBOOT})
    return Expected(0, edits=edits, marks=(ENABLED,) if wait.name == "operator" else ())


def _label(key: str, value: str | None, scene: NodeScene) -> None:
    scene.patch({"metadata": {"labels": {key: value}}})


def edits(key: str, value: str | None) -> tuple[Act, Callable[[Wait], Expected]]:
    """An administrator sets, or removes, one label, and it stays so."""
    return partial(_label, key, value), lambda wait: usual(wait, **{key: value})


def pauses(key: str) -> tuple[Act, Callable[[Wait], Expected]]:
    """An administrator pauses a label that is not ours: it stays, but not before a node is taken."""

    def expect(wait: Wait) -> Expected:
        is_decoded = wait.plans_again and not wait.has_journal
        return usual(wait, **{key: "true" if is_decoded else PAUSED})

    return partial(_label, key, PAUSED), expect


def _spec(unschedulable: bool | None, scene: NodeScene) -> None:
    scene.patch({"spec": {"unschedulable": unschedulable}})


def _cordon_again(scene: NodeScene) -> None:
    _spec(None, scene)
    _spec(True, scene)


def cordoned(is_cordoned: bool) -> Callable[[Wait], Expected]:
    """As usual, with the node cordoned or not at the end."""
    return lambda wait: replace(usual(wait), is_cordoned=is_cordoned)


def _cordon_expected(wait: Wait) -> Expected:
    """`kubectl cordon` on a node that we cordoned writes nothing, so it cannot be seen: ours is lifted."""
    return cordoned(not wait.has_journal)(wait)


def _annotation(key: str, value: str | None, scene: NodeScene) -> None:
    scene.annotate(**{key: value})


def _garbage_expected(wait: Wait) -> Expected:
    """The next plan cannot read it; the run releases what it knows that it acquired."""
    return Expected(2, OLD) if wait.plans_again else usual(wait)


def _delete_node(scene: NodeScene) -> None:
    scene.world.api.delete(scene.node.path)


def _deleted_expected(wait: Wait) -> Expected:
    if wait.name == "reboot":
        return Expected(9, ASCEND_OLD, None)
    return Expected(2, OLD if wait.plans_again else NEW, None)


def _make_again(scene: NodeScene) -> None:
    old = scene.node.read()
    _delete_node(scene)
    body: Json = {"metadata": {"name": scene.node.name, "labels": FRESH}, "status": old["status"]}
    scene.world.api.post("/api/v1/nodes", body)


def _made_again_expected(wait: Wait) -> Expected:
    whole = dict.fromkeys((*LABELS, PLUGIN, "cluster-tests/node")) | FRESH
    if wait.name == "reboot":
        return Expected(9, ASCEND_OLD, whole | dict.fromkeys(ASKED_FOR_REBOOT), is_silent=True)
    if wait.name == "safe-load":  # it watches the Node, and so sees it go
        return Expected(2, OLD, whole, is_silent=True)
    # A run that plans again acquires the new Node; otherwise no run has it.
    return Expected(0, edits=whole, is_silent=not wait.plans_again)


def _delete_own_pod(grace_s: int | None, scene: NodeScene) -> None:
    """As `kubectl delete pod`, and then the kubelet unless it is by force, do."""
    scene.own.api.delete(scene.own.path, grace_s=grace_s)
    scene.own.wait_state("gone")
    if grace_s is None:
        scene.sigterm_s = time.monotonic()
        os.kill(scene.current.pid, signal.SIGTERM)


def _after_sigterm(wait: Wait) -> Expected:
    if wait.name == "reboot":
        return usual(wait)
    # The operator works on what it was asked for whether we live or not; the next run waits for it. In a hurry, only
    # the patch that gives back shows the end.
    marks = (ENABLED, REQUESTED) if wait.name == "operator" else ()
    return Expected(10, OLD, marks=marks, is_silent=not wait.has_journal)


def _orphan_expected(wait: Wait) -> Expected:
    """A run that plans again finds that its pod is gone, and gives up."""
    return Expected(2, OLD, marks=usual(wait).marks) if wait.plans_again else usual(wait)


def _looping(scene: NodeScene, act: Callable[[], object], seconds: float) -> contextlib.AbstractContextManager[None]:
    def insist() -> None:
        with contextlib.suppress(ApiError):
            act()

    return repeated(insist, seconds, f"hand-{scene.node.name}")


def _reconcile_labels(scene: NodeScene) -> contextlib.AbstractContextManager[None]:
    """An operator that adds the deploy labels that are missing, for ever; an administrator removes one meanwhile."""
    wanted = {EXPORTER: "true", FURTHER: "true"}

    def add_missing() -> None:
        there = scene.node.labels()
        missing = {key: value for key, value in wanted.items() if key not in there}
        if missing:
            scene.node.set_labels(missing)

    _label(EXPORTER, None, scene)
    return _looping(scene, add_missing, 0.01)


def _flap(scene: NodeScene) -> contextlib.AbstractContextManager[None]:
    numbers = iter(range(1_000_000))
    return _looping(scene, lambda: _label(FLAPPING, str(next(numbers)), scene), FLAP_S)


HANDS = (
    Hand("adds-missing-label", *edits(ADDED, "true"), "labels"),
    Hand("edits-to-true", *edits(EXPORTER, "true"), "labels", in_pause=True),
    Hand("edits-to-false", *edits(DAEMON, "false"), "labels"),
    Hand("edits-to-custom", *edits(DISCOVERY, "blue"), "labels"),
    Hand("deletes-label", *edits(VALIDATOR, None), "labels"),
    Hand("pauses-one-that-is-off", *pauses(OFF), "labels"),
    Hand("pauses-a-further-one", *pauses(FURTHER), "labels"),
    Hand("cordons-anew", _cordon_again, cordoned(True), "labels", in_journal=True),
    Hand("operator-loop", _reconcile_labels, lambda wait: usual(wait, **{FURTHER: "true"}), "loop"),
    Hand("uncordons", partial(_spec, None), cordoned(False), "loop", in_journal=True),
    Hand("cordons", partial(_spec, True), _cordon_expected, "cordon"),
    Hand("removes-journal", partial(_annotation, JOURNAL, None), usual, "cordon", in_journal=True),
    Hand("removes-cordon-mark", partial(_annotation, CORDON, None), cordoned(True), "garbage", in_journal=True),
    Hand("garbles-journal", partial(_annotation, JOURNAL, "}garbage"), _garbage_expected, "garbage", in_journal=True),
    Hand("deletes-node", _delete_node, _deleted_expected, "gone"),
    Hand("makes-node-again", _make_again, _made_again_expected, "again"),
    Hand("deletes-own-pod", partial(_delete_own_pod, None), _after_sigterm, "ending"),
    Hand("force-deletes-own-pod", partial(_delete_own_pod, 0), _orphan_expected, "orphan"),
    Hand("flaps", _flap, usual, "flapper"),
)


def plays(share: Share) -> list[tuple[Wait, list[Hand]]]:
    """The share of the runs that together are every pair of wait and hand: the hands of one bundle act in one run."""
    bundles: dict[str, list[Hand]] = {}
    for hand in HANDS:
        bundles.setdefault(hand.bundle, []).append(hand)
    found = ((wait, [hand for hand in hands if hand.fits(wait)]) for hands in bundles.values() for wait in WAITS)
    return share.of([(wait, hands) for wait, hands in found if hands])


def play(scene: NodeScene, wait: Wait, hands: Sequence[Hand]) -> tuple[int, Left]:
    """Exit code, and what is left, of a run during whose wait these hands act.

    A run that gave up, as it may where the Node never stops changing, is followed by the next one.
    """
    wait.reach(scene)
    with contextlib.ExitStack() as going_on:
        for hand in hands:
            lasting = hand.act(scene)
            if lasting is not None:
                going_on.enter_context(lasting)
        if not scene.current.has_ended:
            wait.end(scene)
        ended = scene.current.end()
    if scene.sigterm_s:
        took_s = ended.at_s - scene.sigterm_s
        is_soon = took_s < ENDS_WITHIN_S or took_s < patient(ENDS_WITHIN_S)
        assert is_soon, f"{wait.name}: it ended {took_s:g} s after SIGTERM\n{scene.current.log}"
    if ended.code == KEPT_CHANGING and any(hand.name == "flaps" for hand in hands):
        ended = scene.start().end()
    left = Left.of(scene)
    if left.labels is not None:
        left.labels.pop(FLAPPING, None)  # what the flapper wrote last is not of interest
    return ended.code, left


def wanted(scene: NodeScene, wait: Wait, hands: Sequence[Hand]) -> tuple[int, Left]:
    """What `play` has to give: of several hands, what each makes unusual."""
    nobody, found = usual(wait), usual(wait)
    for one in (hand.expect(wait) for hand in hands):
        found = Expected(
            one.code if one.code != nobody.code else found.code,
            one.driver if one.driver != nobody.driver else found.driver,
            None if one.edits is None or found.edits is None else {**found.edits, **one.edits},
            one.is_cordoned or found.is_cordoned,
            one.marks if one.marks != nobody.marks else found.marks,
            one.is_silent or found.is_silent,
        )
    if found.edits is None:
        return found.code, Left(None, driver=found.driver, state=None)
    labels = {key: value for key, value in {**scene.labels, **found.edits}.items() if value is not None}
    return found.code, Left(labels, found.is_cordoned, found.marks, found.driver, found.state)
