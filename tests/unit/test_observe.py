"""Who we are, whose journal it is, which host this is and which driver is wanted: found, or refused with a reason."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.journal import Journal, JournalUnreadable, Owner, encode
from driver_manager.domain.model import Host, Observation, Pod, PodList
from driver_manager.observe import Identity, is_alive, is_this_host, observe, own_pod, wanted_digest
from tests.fakes.builders import DRIVER, PROFILE, driver_pod, host, journal, node, pod

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
        read_host=lambda _: fields.get("host", host()),
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
    assert is_this_host(now, host()) is answer
    found = observed(SURE, driver_pod(), node=now)
    assert (found.host is not None) is answer


def test_an_empty_machine_id_on_both_sides_is_no_match() -> None:
    assert not is_this_host(node(machine_id="", boot_id="b"), host(machine_id="", boot_id="c"))


# the journal


@pytest.mark.parametrize(
    ("pods", "answer"),
    [
        ((driver_pod(),), True),
        ((driver_pod(deleting=True),), True),
        ((driver_pod(phase="Failed"),), False),
        ((pod("driver-a", uid="another"),), False),
        ((), False),
    ],
)
def test_a_pods_journal_is_alive_while_that_very_pod_is_there(pods: tuple[Pod, ...], answer: bool) -> None:
    assert is_alive(journal(), listed(*pods), host(), nobody) is answer


@pytest.mark.parametrize(
    ("there", "lives", "answer"),
    [(host(), True, True), (host(), False, False), (None, True, False), (host(boot_id="boot-2"), True, False)],
)
def test_a_processs_journal_is_alive_while_it_runs_in_this_boot(there: Host | None, lives: bool, answer: bool) -> None:
    by_hand = Journal(Owner(pid=7, boot_id="boot-1"), "boot-1")
    assert is_alive(by_hand, listed(), there, lambda _: lives) is answer


def test_the_nodes_journal_is_part_of_the_observation() -> None:
    now = node(annotations={PROFILE.keys.journal: encode(journal())})
    found = observed(SURE, driver_pod(), node=now)
    assert found.journal == journal()
    assert found.owner_alive
    assert observed(SURE, driver_pod()).journal is None


@pytest.mark.parametrize("text", ["", "garbage", "null"])
def test_a_journal_that_cannot_be_read_stops_the_observation(text: str) -> None:
    with pytest.raises(JournalUnreadable):
        observed(SURE, driver_pod(), node=node(annotations={PROFILE.keys.journal: text}))


def test_the_host_is_read_with_the_journal_in_hand() -> None:
    seen: list[Journal | None] = []

    def read(found: Journal | None) -> None:
        seen.append(found)

    now = node(annotations={PROFILE.keys.journal: encode(journal())})
    observe(now, listed(driver_pod()), PROFILE, SURE, digest="d", read_host=read, process_lives=nobody)
    assert seen == [journal()]
