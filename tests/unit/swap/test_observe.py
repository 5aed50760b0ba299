"""Who we are, whose journal it is, which host this is and which driver is wanted: found, or refused with a reason."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.core.swap.run import Identity, is_alive, observe, own_pod, wanted_digest
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.journal import Journal, JournalUnreadable, Owner, encode
from driver_manager.domain.node import Node, Pod, PodList, is_this_host
from driver_manager.domain.observation import Observation
from tests.support.fakes.builders import DRIVER, PROFILE, driver_pod, host, journal, node, pod

SURE = Identity("driver-a", True, "rbln-system")
GUESSED = Identity("driver-a", False, "rbln-system", Owner(pid=7))


def listed(*pods: Pod) -> PodList:
    return PodList(pods, "1")


def nobody(_: Owner) -> bool:
    return False


def observed(
    identity: Identity = SURE, *pods: Pod, lives: Callable[[Owner], bool] = nobody, **fields: Any
) -> Observation:
    return observe(
        fields.get("node", node()),
        listed(*pods),
        PROFILE,
        identity,
        digest=fields.get("digest", "d"),
        read_host=lambda *_: fields.get("host", host()),
        process_lives=lives,
    )


# own pod


def test_our_own_pod_is_found_by_name_and_namespace() -> None:
    assert own_pod(listed(pod("driver-a", namespace="other"), driver_pod()), node(), SURE) == driver_pod()


def test_a_pod_name_that_was_told_but_is_not_on_the_node_is_an_error_naming_both() -> None:
    with pytest.raises(ConfigError, match="rbln-system/driver-a is not on node node-1") as caught:
        own_pod(listed(pod("driver-a", namespace="other")), node(), SURE)
    assert "a pod of that name is in other" in caught.value.what
    assert "POD_NAMESPACE" in caught.value.remedy


def test_a_host_name_that_is_one_pods_name_is_that_pod_in_any_namespace() -> None:
    elsewhere = pod("driver-a", namespace="other")
    assert own_pod(listed(elsewhere), node(), GUESSED) == elsewhere


@pytest.mark.parametrize("pods", [(), (pod("x"),), (pod("driver-a", namespace="a"), pod("driver-a", namespace="b"))])
def test_a_host_name_that_is_nobodys_or_two_pods_name_means_by_hand(pods: tuple[Pod, ...]) -> None:
    assert own_pod(listed(*pods), node(), GUESSED) is None


def test_no_name_matches_no_pod() -> None:
    assert own_pod(listed(pod("")), node(), Identity()) is None


def test_we_are_the_pod_where_there_is_one_else_the_process() -> None:
    assert observed(SURE, driver_pod()).me == Owner(pod="rbln-system/driver-a", pod_uid="driver-a")
    assert observed(GUESSED).me == Owner(pid=7)


def test_in_a_pod_we_are_the_pod_and_the_process() -> None:
    assert observed(replace(SURE, process=PROCESS), driver_pod()).me == IN_POD


# digest


def test_a_digest_that_was_told_goes_first() -> None:
    assert wanted_digest("told", driver_pod(config_digest="own"), listed(), PROFILE)[0] == "told"


def test_the_digest_in_our_own_pods_environment_is_next() -> None:
    assert wanted_digest("", driver_pod(config_digest="own"), listed(), PROFILE) == (
        "own",
        "own pod rbln-system/driver-a",
    )


def test_else_the_driver_containers_canonical_spec_is_hashed() -> None:
    digest, _ = wanted_digest("", driver_pod(main_container='["image:1"]'), listed(), PROFILE)
    assert digest == hashlib.sha256(b'["image:1"]').hexdigest()
    assert digest != wanted_digest("", driver_pod(main_container='["image:2"]'), listed(), PROFILE)[0]


def test_by_hand_the_newest_living_driver_pod_tells() -> None:
    pods = (
        pod("old", DRIVER, config_digest="old", created="2024-01-01T00:00:00Z"),
        pod("new", DRIVER, config_digest="new", created="2024-01-02T00:00:00Z"),
        pod("leaving", DRIVER, config_digest="leaving", created="2024-01-03T00:00:00Z", deleting=True),
        pod("over", DRIVER, config_digest="over", created="2024-01-04T00:00:00Z", phase="Failed"),
        pod("other", config_digest="other", created="2024-01-05T00:00:00Z"),
    )
    assert wanted_digest("", None, listed(*pods), PROFILE) == ("new", "driver pod rbln-system/new")


@pytest.mark.parametrize("told", ["two words", "two\nlines", "tab\there", "d" * 257, "\ufffd", "\x00", " "])
def test_a_told_digest_that_the_state_file_could_not_hold_is_refused(told: str) -> None:
    with pytest.raises(ConfigError, match="DRIVER_CONFIG_DIGEST") as caught:
        wanted_digest(told, driver_pod(), listed(), PROFILE)
    assert "driver DaemonSet" in caught.value.remedy


@pytest.mark.parametrize("own", [driver_pod(config_digest="two words"), None])
def test_a_pods_digest_that_the_state_file_could_not_hold_is_refused(own: Pod | None) -> None:
    with pytest.raises(ConfigError):
        wanted_digest("", own, listed(driver_pod(config_digest="two words")), PROFILE)


def test_a_pod_of_ours_that_is_no_driver_pod_leaves_it_to_the_driver_pod() -> None:
    debug = pod("debugger", main_container='["busybox"]')
    driver = pod("driver-x", DRIVER, config_digest="wanted")
    assert wanted_digest("", debug, listed(debug, driver), PROFILE) == ("wanted", "driver pod rbln-system/driver-x")
    assert wanted_digest("", debug, listed(debug), PROFILE) == ("", "")
    with_env = replace(debug, config_digest="own")
    assert wanted_digest("", with_env, listed(with_env, driver), PROFILE)[0] == "own"


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (driver_pod(main_digest="b"), "b"),
        (driver_pod(main_digest="a"), ""),
        (driver_pod(), ""),
        (driver_pod(main_digest="b", main_started=True), ""),
        (None, ""),
    ],
)
def test_the_digest_that_the_driver_container_records_is_known_where_it_is_another(own: Pod | None, other: str) -> None:
    identity = SURE if own is not None else replace(SURE, pod_name="", pod_name_is_sure=False)
    assert observed(identity, *([own] if own is not None else []), digest="a").installed_digest == other


def test_nothing_that_tells_is_no_digest() -> None:
    assert wanted_digest("", None, listed(pod("other")), PROFILE) == ("", "")


# the host


@pytest.mark.parametrize(
    ("machine", "boot", "answer"),
    [
        ("machine", "boot-1", True),
        ("machine", "boot-0", True),
        ("cloned", "boot-1", True),
        ("other", "boot-9", False),
        ("", "boot-9", False),
        ("other", "", False),
        ("", "", True),
    ],
)
def test_a_host_is_the_nodes_by_machine_id_or_boot_id(machine: str, boot: str, answer: bool) -> None:
    now = node(machine_id=machine, boot_id=boot)
    assert is_this_host(now, "machine", "boot-1") is answer
    found = observed(SURE, driver_pod(), node=now)
    assert (found.host is not None) is answer


def test_ids_that_are_empty_on_both_sides_are_no_match() -> None:
    assert not is_this_host(node(machine_id="", boot_id="b"), "", "c")
    assert not is_this_host(node(machine_id="m", boot_id=""), "n", "")


# the owner of a journal

PROCESS = Owner(pid=7, start_ticks=1, pid_namespace=2, boot_id="boot-1")
IN_POD = replace(PROCESS, pod="rbln-system/driver-a", pod_uid="driver-a")


def alive(
    owner: Owner, *pods: Pod, own: Pod | None = None, runs: bool | None = False, now: Node | None = None
) -> bool | None:
    """`runs`: what the process table says, None off the node."""
    process_lives = None if runs is None else lambda _: bool(runs)
    return is_alive(Journal(owner, "boot-1"), (now or node()).boot_id, listed(*pods), own, process_lives, PROFILE)


@pytest.mark.parametrize(
    ("pods", "answer"),
    [
        ((driver_pod(),), True),
        ((driver_pod(deleting=True),), True),
        ((driver_pod(phase="Failed"),), False),
        ((driver_pod(phase="Succeeded"),), False),
        ((driver_pod(phase="Failed", have_ended=None),), True),  # refused by its kubelet, and not ended yet
        ((driver_pod(deleting=True, have_ended=True),), False),
        ((pod("driver-a", uid="another"),), False),
        ((), False),
    ],
)
def test_another_pods_run_counts_while_that_very_pod_is_there_whatever_its_processes_do(
    pods: tuple[Pod, ...], answer: bool
) -> None:
    owners = [IN_POD, replace(IN_POD, pid=0), replace(IN_POD, boot_id="boot-0")]
    owns = [None, pod("driver-b", uid="driver-b")]
    states = list(itertools.product(owners, owns, [True, False, None]))
    assert [one for one in states if alive(one[0], *pods, own=one[1], runs=one[2]) is not answer] == []


@pytest.mark.parametrize(
    ("owner", "own"),
    [(IN_POD, driver_pod()), (PROCESS, None), (PROCESS, driver_pod())],
    ids=["own", "hand", "hand-pod"],
)
@pytest.mark.parametrize("runs", [True, False, None])
def test_in_our_own_pod_and_by_hand_the_process_decides_and_off_the_node_nobody_can(
    owner: Owner, own: Pod | None, runs: bool | None
) -> None:
    assert alive(owner, driver_pod(), own=own, runs=runs) is runs


@pytest.mark.parametrize("runs", [True, None])
def test_a_process_of_an_earlier_boot_is_dead_wherever_we_look_from(runs: bool | None) -> None:
    assert alive(replace(PROCESS, boot_id="boot-0"), runs=runs) is False
    assert alive(replace(PROCESS, boot_id="boot-0"), runs=runs, now=node(boot_id="")) is runs


def test_a_journal_of_our_own_pod_without_a_process_is_an_older_managers_and_resumed() -> None:
    assert alive(Owner("rbln-system/driver-a", "driver-a"), driver_pod(), own=driver_pod(), runs=True) is False


def test_the_nodes_journal_is_part_of_the_observation() -> None:
    now = node(annotations={PROFILE.keys.journal: encode(journal(owner=IN_POD))})
    found = observed(SURE, driver_pod(), node=now, lives=lambda owner: owner == IN_POD)
    assert found.journal == journal(owner=IN_POD)
    assert found.owner_alive is True
    assert observed(SURE, driver_pod(), node=now).owner_alive is False
    bare = observed(SURE, driver_pod())
    assert bare.journal is None
    assert bare.owner_alive is False


def test_off_the_node_the_process_table_at_hand_is_not_asked() -> None:
    now = node(annotations={PROFILE.keys.journal: encode(journal(owner=PROCESS))})
    for there in (None, host(machine_id="laptop", boot_id="laptop")):
        assert observed(GUESSED, node=now, host=there, lives=lambda _: True).owner_alive is None
        assert observed(GUESSED, node=now, host=there).owner_alive is None


@pytest.mark.parametrize("text", ["", "garbage", "null"])
def test_a_journal_that_cannot_be_read_stops_the_observation(text: str) -> None:
    with pytest.raises(JournalUnreadable):
        observed(SURE, driver_pod(), node=node(annotations={PROFILE.keys.journal: text}))


def test_the_host_is_read_with_the_journal_and_the_wanted_digest_in_hand() -> None:
    seen: list[tuple[Journal | None, str]] = []

    def read(found: Journal | None, wanted: str) -> None:
        seen.append((found, wanted))

    now = node(annotations={PROFILE.keys.journal: encode(journal())})
    observe(now, listed(driver_pod()), PROFILE, SURE, digest="d", read_host=read, process_lives=nobody)
    assert seen == [(journal(), "d")]
