"""A run that only clears the node: it waits for everybody but the driver pod, and leaves the node to its successor.

Killed or stopped at any moment, nothing is lost, no pod is evicted twice, and no node is given back while its
driver is being unloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.core.swap.run import Outcome
from driver_manager.domain import journal as journals
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.host import Holder
from driver_manager.domain.journal import Journal
from driver_manager.domain.node import PROGRAM, REVISION_LABEL, Node, Pod
from driver_manager.domain.observation import Loader
from tests.support.fakes.builders import EXPORTER, OLD_DIGEST, PAUSED, PLUGIN, PROFILE, ROOT_MOUNT, driver_pod
from tests.support.fakes.scenarios import replace_with_workloads
from tests.support.selection import examples

REVISION, OLD, NEW = "rev-2", "driver-a", "driver-b"
TENANTS = ["tenant/bare", "tenant/job", "tenant/served"]
STOPS_S = 4.0


class Clearing:
    """A node whose runs are in short-lived pods that clear it, until `go_on`.

    Once the Node says that it is cleared, the driver pod is deleted, as a rollout's controller does; `deleted_after_s`
    None: it stays. Its container then unloads the driver if no other process has the device. `bystanders` are users
    of the device that the run cannot see. `users_at_restart` counts the others that had it open at the pod's deletion.
    """

    def __init__(self, deleted_after_s: float | None = 1.0, bystanders: int = 0, **changes: Any) -> None:
        self.deleted_after_s, self.bystanders = deleted_after_s, bystanders
        self.clears, self.was_at_work = 0, False
        self.users_at_restart: int | None = None
        world = self.world = replace_with_workloads()
        world.given(loader=Loader.CONTAINER, driver_pod_leaves=True, clear_for=REVISION, is_shown=False)
        world.host.files.pop(PROFILE.paths.load_record, None)
        world.host.put_driver("1.0", OLD_DIGEST, peer=False)
        holder = Holder(77, "daemon", "/dev/rbln0", "open", pod_uid=OLD, pod=f"rbln-system/{OLD}")
        world.given(mounts=[ROOT_MOUNT], known_holders=(holder,), stuck_users={"rebellions": 1}, operator=self._look)
        world.cluster.add_pod(driver_pod(main_started=True))
        world.given(**changes)
        self.next_pod()

    @property
    def journal(self) -> Journal | None:
        text = self.world.node.annotations.get(PROFILE.keys.journal)
        return journals.decode(text).claims if text is not None else None

    @property
    def driver(self) -> Pod | None:
        return self.world.cluster.listed.get(OLD)

    @property
    def is_driver_going(self) -> bool:
        return self.driver is None or self.driver.deleting

    def end_pods(self, phase: str) -> None:
        cluster = self.world.cluster
        for pod in [pod for pod in cluster.listed.values() if pod.name.startswith("clear-")]:
            cluster.add_pod(replace(pod, phase=phase, have_ended=True))

    def next_pod(self) -> None:
        self.end_pods("Failed")
        self.clears += 1
        name = self.world.pod = f"clear-{self.clears}"
        self.world.cluster.add_pod(Pod("rbln-system", name, name, owner_kind="DriverRollout", main_started=True))
        self.world.next_process()

    def delete_driver(self) -> None:
        """Delete the driver pod, as any client may; its container unloads the driver, and the next pod comes."""
        if self.driver is None or self.driver.deleting:
            return
        self.was_at_work = self.world.host.is_at_work
        self.users_at_restart = len(self.world.cluster.device_holders())
        self.world.cluster.stop(self.driver, STOPS_S)
        self.world.clock.after(STOPS_S, self._succeed)

    def _succeed(self) -> None:
        world = self.world.given(known_holders=(), stuck_users={})
        if not world.cluster.device_holders() and not self.bystanders:
            world.given(loaded={}, mounts=[])
        world.cluster.add_pod(replace(driver_pod(labels={REVISION_LABEL: REVISION}), name=NEW, uid=NEW))

    def _look(self, _: Node) -> None:
        found = self.journal
        if found is not None and found.cleared == REVISION and self.deleted_after_s is not None:
            self.world.clock.after(self.deleted_after_s, lambda: self._delete_for(found.owner.pod_uid))

    def _delete_for(self, owner: str) -> None:
        found, pod = self.journal, self.world.cluster.listed.get(owner)
        if found is not None and found.cleared and found.owner.pod_uid == owner and pod is not None and not pod.is_over:
            self.delete_driver()

    def ended(self, code: ExitCode = ExitCode.DONE, *words: str) -> Outcome:
        return self.world.ended(code, *words)

    def succeed(self) -> None:
        """The next driver pod's first run may begin; what the API server shows of the pods before is as it was."""
        self.delete_driver()
        self.world.next_process()
        self.world.clock.sleep(2 * STOPS_S)
        self.world.given(pod=NEW, driver_pod_leaves=False, clear_for="")

    def go_on(self) -> None:
        """The init container of the next driver pod, started as often as it takes; the driver is loaded then."""
        world = self.world
        self.succeed()
        self.end_pods("Succeeded")
        for _ in range(4):
            world.next_process()
            outcome = world.run()
            if outcome is not None and outcome.exit_code is ExitCode.DONE:
                world.host.start_driver_container("2.0", world.digest)
                return
        raise AssertionError(f"never done: {outcome}")

    def check_settled(self, *, is_whole: bool = True) -> None:
        """Raise AssertionError unless the new driver serves, no pod was disturbed twice, and the node is as it was."""
        self.go_on()
        assert self.world.is_released
        assert self.world.host.loaded
        if is_whole:
            assert sorted(self.world.cluster.evicted) == TENANTS, "each once"
            assert self.world.state().shown.state == "ready"

    def check_kept(self) -> None:
        """Raise AssertionError unless the driver pod stays and the node is as it was."""
        assert self.world.is_released
        assert not self.is_driver_going


def effects_and_calls() -> tuple[int, int]:
    made = Clearing()
    made.ended()
    return len(made.world.killer.effects), len(made.world.killer.calls)


EFFECTS, CALLS = effects_and_calls()


def test_the_node_is_cleared_and_left_to_the_next_pod_which_disturbs_no_pod() -> None:
    made = Clearing()
    assert made.ended().what.startswith("done: the node is cleared")
    assert made.users_at_restart == 0, "the driver pod was deleted once no other process had the device"
    assert made.driver is None, "the run waits for the pod to have left"
    assert made.journal is not None
    assert (made.journal.cleared, made.journal.owner.pod_uid) == (REVISION, "clear-1")
    state = made.world.state()
    assert (state.labels[PLUGIN], state.unschedulable, state.shown.state) == (PAUSED, True, "upgrading")
    touching = ("unload", "unmount", "remove", "load")
    assert not [name for name in made.world.killer.effects if name.startswith(touching)]
    made.check_settled()
    made = Clearing()  # operands that are switched on again have left before the driver pod is deleted
    made.world.on("look at labels", lambda one: one.cluster.edit({PLUGIN: "true", EXPORTER: "true"}))
    made.ended()
    assert made.users_at_restart == 0
    assert any("pausing again" in line for line in made.world.reporter.warnings)


Facts = Callable[[Clearing], object]


def edited(uid: str, **changes: Any) -> Callable[[Clearing], None]:
    return lambda made: made.world.cluster.add_pod(replace(made.world.cluster.listed[uid], **changes))


def after_3_s(action: Callable[[Clearing], object]) -> Callable[[Clearing], None]:
    return lambda made: made.world.clock.after(3.0, lambda: action(made))


def a_persons(made: Clearing) -> None:
    edited("clear-1", owner_kind="", programs=(PROGRAM,))(made)
    after_3_s(lambda made: made.end_pods("Succeeded"))(made)


def not_cleared(made: Clearing) -> None:
    assert made.journal is not None
    made.world.cluster.edit(annotations={PROFILE.keys.journal: journals.encode(replace(made.journal, cleared=""))})


DONE, ELSEWHERE = ExitCode.DONE, ExitCode.OWNED_ELSEWHERE
ENDS: dict[str, tuple[Facts, ExitCode, float]] = {
    "its end is reported": (after_3_s(lambda made: made.end_pods("Succeeded")), DONE, 3.0),
    "deleted": (after_3_s(edited("clear-1", deleting=True, have_ended=True)), DONE, 3.0),
    "removed": (after_3_s(lambda made: made.world.cluster.remove_pod("clear-1")), DONE, 3.0),
    "gone": (lambda made: made.world.cluster.remove_pod("clear-1"), DONE, 0.0),
    "it runs on": (lambda made: None, ELSEWHERE, 15.0),
    "asked to end": (after_3_s(lambda made: made.world.clock.ask_to_end()), ExitCode.STANDING_DOWN, 3.0),
    "cleared for another": (edited(NEW, labels={REVISION_LABEL: "rev-3"}), ELSEWHERE, 0.0),
    "no DaemonSet's pod": (edited(NEW, labels={}), ELSEWHERE, 0.0),
    "no rollout's": (edited("clear-1", owner_kind="Job", programs=(PROGRAM,)), ELSEWHERE, 0.0),
    "a person's": (a_persons, DONE, 3.0),
    "by hand": (lambda made: made.world.given(pod=""), ELSEWHERE, 0.0),
    "not cleared": (not_cleared, ELSEWHERE, 0.0),
}


@pytest.mark.parametrize(("facts", "code", "waited_s"), ENDS.values(), ids=list(ENDS))
def test_the_next_driver_pod_waits_for_the_pod_that_cleared_the_node(
    facts: Facts, code: ExitCode, waited_s: float
) -> None:
    made = Clearing()
    made.ended()
    made.succeed()
    facts(made)
    before, began_s = made.journal, made.world.clock.monotonic()
    made.ended(code)
    assert made.world.clock.monotonic() - began_s == pytest.approx(waited_s)
    assert made.world.is_released if code is DONE else made.journal == before
    made.check_settled()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("by_hand", [False, True], ids=["cleared-again", "deleted-by-hand"])
def test_killed_at_any_effect_the_next_run_of_either_kind_goes_on(after: bool, by_hand: bool) -> None:
    assert EFFECTS >= 6
    for effect in range(EFFECTS):
        made = Clearing()
        made.world.killed(effect, after=after)
        if not by_hand:
            made.next_pod()
            made.ended()
            assert made.users_at_restart == 0, effect
        made.check_settled()


def test_sigterm_at_any_call_gives_the_node_back_or_leaves_it_to_the_next_pod() -> None:
    for call in range(CALLS):
        made = Clearing()
        made.world.killer.at_call(call, made.world.clock.ask_to_end)
        outcome = made.world.run()
        assert outcome is not None
        assert outcome.exit_code in (ExitCode.DONE, ExitCode.STANDING_DOWN)
        if made.journal is None:
            made.check_kept()
        else:
            assert made.is_driver_going, f"call {call}: {outcome}"
        made.world.next_process()
        made.go_on()
        assert made.world.is_released


def test_after_sigterm_or_for_a_second_run_while_the_driver_pod_is_going_nothing_is_given_back() -> None:
    made = Clearing(deleted_after_s=None)
    made.world.clock.after(120.0, made.delete_driver)
    made.world.clock.after(120.0, made.world.clock.ask_to_end)
    made.ended()
    assert made.journal is not None
    assert made.world.state().labels[PLUGIN] == PAUSED
    made.check_settled()
    made = Clearing()
    made.world.killed(3)
    taken = made.journal
    made.delete_driver()
    made.next_pod()
    made.ended(DONE, "the next one continues")
    assert made.journal == taken
    made.go_on()
    assert made.world.is_released


def test_a_container_that_could_not_unload_and_a_second_pod_leave_no_pod_evicted_twice() -> None:
    made = Clearing(bystanders=1)
    made.ended()
    assert made.world.host.loaded
    made.check_settled()
    made = Clearing(deleted_after_s=None)
    made.world.killed(EFFECTS - 1)
    assert made.journal is not None
    assert made.journal.cleared == REVISION
    made.next_pod()
    made.deleted_after_s = 1.0
    made.ended()
    made.check_settled()


def test_a_driver_pod_that_is_not_deleted_or_not_alone_on_the_device_keeps_the_node_only_until_the_deadline() -> None:
    at_work = Clearing(deleted_after_s=300.0)
    at_work.ended()
    assert at_work.was_at_work, "health-watch is kept silent as long as the node is held"
    made = Clearing(deleted_after_s=None)
    made.ended(ExitCode.STANDING_DOWN, "but driver pod")
    made.check_kept()
    assert made.world.host.loaded
    used = Clearing(stuck_users={"rebellions": 2})
    stranger = (Holder(99, "trainer", "/dev/rbln0", "open"),)
    used.world.clock.after(5.0, lambda: used.world.given(known_holders=stranger))
    used.ended(ExitCode.DRIVER_BUSY)
    used.check_kept()
    by_kernel = Clearing(known_holders=())  # only the kernel knows what uses it
    by_kernel.world.clock.after(200.0, lambda: by_kernel.world.given(stuck_users={}))
    by_kernel.ended(ExitCode.DRIVER_BUSY)
    by_kernel.check_kept()


def test_a_driver_that_is_the_wanted_one_is_cleared_all_the_same_and_one_that_no_pod_unloads_is_refused() -> None:
    made = Clearing(digest=OLD_DIGEST)
    made.ended()
    assert made.users_at_restart == 0
    made.go_on()
    assert made.world.is_released
    made = Clearing()
    made.world.cluster.remove_pod(OLD)
    made.ended(ExitCode.USAGE)
    assert made.world.is_released


@pytest.mark.parametrize("changes", [{"loader": Loader.MANAGER}, {"loaded": {}}], ids=["manager", "not loaded"])
def test_where_nothing_is_to_be_cleared_nothing_is_touched(changes: dict[str, Any]) -> None:
    made = Clearing(**changes)
    made.ended(DONE, "nothing to clear")
    made.check_kept()


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=5))
def test_any_number_of_kills_and_signals_in_a_row_loses_nothing(blows: list[tuple[int, bool, bool]]) -> None:
    made = Clearing()
    for effect, after, is_signal in blows:
        if is_signal:
            made.world.killer.at_call(effect * 3, made.world.clock.ask_to_end)
        else:
            made.world.killer.kill_at(effect, after=after)
        made.world.run()
        if made.is_driver_going:
            break
        made.next_pod()
    made.check_settled(is_whole=False)
    assert len(made.world.cluster.evicted) == len(set(made.world.cluster.evicted))
