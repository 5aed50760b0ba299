"""A pod is waited for because of the node label it is placed by, whatever its name or namespace."""

from __future__ import annotations

from typing import Any

import pytest

from driver_manager.domain.host import Holder
from driver_manager.domain.pods.workloads import bound_to_root, is_placed_by, named, placed_by, why_still_there
from tests.support.fakes.builders import (
    DRIVER,
    EXPORTER,
    PLUGIN,
    PROFILE,
    ROOT_MOUNT,
    driver_pod,
    key,
    node,
    observation,
    pod,
    workload,
)


def test_custom_clients_in_any_namespace_are_found_by_their_label() -> None:
    client = pod("client", "kubernetes.io/arch", PLUGIN, namespace="tenant", owner_kind="ReplicaSet")
    assert is_placed_by(client, {PLUGIN}, None)
    assert not is_placed_by(client, {EXPORTER}, None)


def test_our_own_pod_is_never_waited_for() -> None:
    own = driver_pod()
    assert not is_placed_by(own, {DRIVER}, own)
    assert is_placed_by(own, {DRIVER}, None)
    assert is_placed_by(pod("driver-b", DRIVER), {DRIVER}, own)


@pytest.mark.parametrize(("phase", "answer"), [("Succeeded", False), ("Failed", False), ("Pending", True)])
def test_a_pod_that_has_ended_is_not_waited_for(phase: str, answer: bool) -> None:
    assert is_placed_by(pod("p", PLUGIN, phase=phase), {PLUGIN}, None) is answer


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"deleting": True, "have_ended": True}, False),
        ({"deleting": True, "have_ended": False}, True),
        ({"deleting": True, "have_ended": None}, True),
        ({"have_ended": True}, True),  # its kubelet starts them again
        ({"deleting": True, "have_ended": True, "claims": ("npu",)}, True),  # its devices are not given back yet
        ({"phase": "Failed", "have_ended": None}, True),
        ({"phase": "Failed", "have_ended": False}, True),
        ({"phase": "Failed", "have_ended": None, "deleting": True}, True),
    ],
)
def test_a_pod_is_waited_for_as_long_as_a_container_of_it_may_run(fields: dict[str, Any], answer: bool) -> None:
    assert is_placed_by(pod("p", PLUGIN, **fields), {PLUGIN}, None) is answer


def test_a_users_pod_that_failed_without_a_word_of_its_containers_is_over() -> None:
    """Its object may stay for ever, as a record of an eviction does; that of a DaemonSet's pod is removed."""
    assert workload("w", phase="Failed", have_ended=None).is_over
    assert not pod("p", phase="Failed", have_ended=None).is_over


def test_pods_keep_their_order() -> None:
    pods = (pod("b", PLUGIN), pod("x"), pod("a", EXPORTER))
    assert [str(found) for found in placed_by(pods, {PLUGIN, EXPORTER}, None)] == ["rbln-system/b", "rbln-system/a"]


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (ROOT_MOUNT, True),
        (f"{ROOT_MOUNT}/usr/bin", True),
        ("/run/rbln", True),
        ("/run/rbln/", True),
        ("/", True),
        ("/run/rbln/driver-old", False),
        ("/run/rbl", False),
        ("/run/rbln/validations", False),
    ],
)
def test_a_pod_is_bound_to_the_root_by_a_mount_that_shows_it(path: str, answer: bool) -> None:
    obs = observation(pods=(pod("p", PLUGIN, host_paths=("/etc", path)),))
    assert bound_to_root(obs, PROFILE) == (frozenset({PLUGIN}) if answer else frozenset())


def test_only_deploy_labels_of_the_node_are_bounced_never_the_drivers_own() -> None:
    bound = {"host_paths": (ROOT_MOUNT,)}
    pods = (pod("a", DRIVER, "zone", **bound), pod("b", key("not-on-this-node"), **bound), pod("c", EXPORTER, **bound))
    assert bound_to_root(observation(pods=pods), PROFILE) == {EXPORTER}
    assert bound_to_root(observation(pods=pods, node=node({})), PROFILE) == frozenset()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"is_mirror": True, "deleting": True}, "mirror pod"),
        ({"reason": "NodeLost", "deleting": True}, "node lost"),
        ({}, "DaemonSet controller has not reacted"),
        ({"owner_kind": "Job"}, "owned by a Job, so a label does not move it"),
        ({"owner_kind": ""}, "it has no controller"),
        ({"deleting": True, "finalizers": ("a/b", "c/d"), "grace_period_s": 30}, "held by finalizer a/b, c/d"),
        ({"deleting": True, "grace_period_s": 45}, "grace period of 45 s"),
        ({"deleting": True, "grace_period_s": None}, "grace period of 0 s"),
    ],
)
def test_the_reason_why_a_pod_stays_is_told(fields: dict[str, object], said: str) -> None:
    assert said in why_still_there(pod("p", PLUGIN, **fields))


@pytest.mark.parametrize(
    ("seen", "pod_name", "uid"),
    [
        ("api-uid", "rbln-system/p", "api-uid"),
        ("static-uid", "rbln-system/m", "mirror-uid"),
        ("mirror-uid", "rbln-system/m", "mirror-uid"),
        ("unknown", "", "unknown"),
        ("", "", ""),
    ],
)
def test_a_holder_gets_the_name_and_the_uid_that_the_api_has_for_its_pod(seen: str, pod_name: str, uid: str) -> None:
    pods = (pod("p", uid="api-uid"), pod("m", uid="mirror-uid", is_mirror=True, static_uid="static-uid"))
    (found,) = named([Holder(7, "x", "/dev/rbln0", "open", pod_uid=seen)], pods)
    assert (found.pod, found.pod_uid) == (pod_name, uid)
