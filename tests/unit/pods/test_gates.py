"""A switch that is on while the Node lacks it is paused by a key that we make, and that goes away again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.adapters.kube.objects import as_pod
from driver_manager.domain import journal as journals
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.journal import JournalUnreadable
from driver_manager.domain.pods.labels import gate_originals, gates_restored
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.scenarios import GATE, OPEN_GATE, SHUT_GATE, replace_with_more_of_the_profile

JOURNAL = PROFILE.keys.journal
LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "true", "false", "gold"]))


def seen_while_paused() -> tuple[dict[str, str | None], journals.Journal]:
    """The gates' labels and the journal in the middle of a run."""
    world, found = replace_with_more_of_the_profile(), []

    def look() -> None:
        current = world.cluster.current
        assert current is not None
        gates = {key: current.labels.get(key) for key in (GATE, OPEN_GATE, SHUT_GATE)}
        found.append((gates, journals.decode(current.annotations[JOURNAL]).claims))

    unload = "unload rebellions"
    world.killer.at_call(replace_calls().index(unload), look)
    world.run()
    return found[0]


def replace_calls() -> list[str]:
    world = replace_with_more_of_the_profile()
    world.run()
    return world.killer.calls


def test_all_three_are_off_during_the_swap_and_the_journal_knows_what_they_were() -> None:
    gates, journal = seen_while_paused()
    assert gates == {GATE: "false", OPEN_GATE: "false", SHUT_GATE: "false"}
    assert journal.gates == {GATE: None, OPEN_GATE: "yes"}


def test_afterwards_the_one_that_was_absent_is_absent_again_and_the_shut_one_stays_shut() -> None:
    world = replace_with_more_of_the_profile()
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
    labels = world.state().labels
    assert GATE not in labels
    assert (labels[OPEN_GATE], labels[SHUT_GATE]) == ("yes", "false")


@pytest.mark.parametrize("value", ["true", "mine", ""])
def test_who_switches_one_on_during_the_pause_wins(value: str) -> None:
    world = replace_with_more_of_the_profile()
    world.killer.at_call(replace_calls().index("unload rebellions"), lambda: world.cluster.edit({GATE: value}))
    world.run()
    assert world.state().labels[GATE] == value


def test_a_failure_before_the_driver_is_touched_gives_them_back() -> None:
    world = replace_with_more_of_the_profile()
    world.policy = replace(world.policy, device_free_timeout_s=1.0)
    world.host.stuck_users = {"rebellions": 1}
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DRIVER_BUSY
    assert GATE not in world.state().labels
    assert world.state().labels[OPEN_GATE] == "yes"


@given(LABELS, LABELS)
def test_what_is_switched_off_comes_back_as_it_was_and_nothing_else_changes(
    labels: dict[str, str], journaled: dict[str, str]
) -> None:
    saved = gate_originals(labels, journaled, frozenset("abc"))
    off = {**labels, **dict.fromkeys(saved, "false")}
    for key, value in gates_restored(off, saved).items():
        if value is None:
            del off[key]
        else:
            off[key] = value
    known = {key: value for key, value in journaled.items() if labels.get(key) == "false"}
    assert off == labels | known


def test_a_pod_is_placed_by_a_switch_that_must_not_say_false_and_by_no_other_denial() -> None:
    def expression(key: str, operator: str, *values: str) -> dict[str, object]:
        return {"key": key, "operator": operator, "values": list(values)}

    terms = [
        expression("a", "NotIn", "false"),
        expression("b", "NotIn", "true"),
        expression("c", "DoesNotExist"),
        expression("d", "In", "true"),
    ]
    required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    body = {"metadata": {"name": "n", "namespace": "s", "uid": "u"}, "spec": {"affinity": affinity}}
    assert as_pod(body).selector_keys == {"a", "d"}


def test_an_older_manager_refuses_a_journal_with_gates_and_reads_any_other() -> None:
    plain = journals.Journal(journals.Owner(), "boot")
    assert '"v":1' in journals.encode(plain)
    assert '"v":2' in journals.encode(replace(plain, gates={GATE: None}))
    with pytest.raises(JournalUnreadable, match="gates"):
        journals.decode(
            '{"v":2,"bootId":"","owner":{"pod":"p","uid":"u"},"labels":{},"cordoned":false,"gates":{"a":7}}'
        )
