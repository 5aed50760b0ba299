"""The order in which the parts of DRA leave, on a real kubelet: pods with claims, their unprepare, the plugin last."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control_plane.api import Json, gone
from tests.support.control_plane.fixtures import serve_dra
from tests.support.control_plane.old_server import DRA_GROUP, PodClaim, claim_body, claim_status, claims_annotation
from tests.support.deploy.apply import apply
from tests.support.node.drivers import (
    OTHER_NAMESPACE,
    PAUSED,
    PREFIX,
    Drivers,
    OtherTeam,
    daemon_set,
    shell,
    stopping_after,
)
from tests.support.node.machine import NAMESPACE
from tests.support.node.measured import Timeline
from tests.support.node.node_init import NAME
from tests.support.node.place import wait_until

PLUGINS = "/var/lib/kubelet/plugins"
MOUNTS = {"registry": f"{PLUGINS}_registry", "plugins": PLUGINS, "dev": "/dev"}
PLUGIN, CSI, USER, CLAIM = "some-name", "csi-node", "trainer", "npu"
UNPREPARING = (
    "trap 'exit 0' TERM; cd /plugins; "
    "while :; do for one in unprepare-*; do [ -e $one ] && /busybox mv $one done-$one; done; sleep 0.1; done"
)
"""The plugin: it answers each request that a pod's end makes. A real one gets it from the kubelet, over its socket."""

ENDING = (
    "trap ': > /plugins/unprepare-x; until [ -e /plugins/done-unprepare-x ]; do sleep 0.1; done; : > /plugins/ended; "
    "exit 0' TERM; "
    "while :; do sleep 3600 & wait $!; done"
)
"""A pod with a claim: a kubelet holds its end until the plugin has unprepared its devices."""

_CLAIMS = f"/apis/{DRA_GROUP}/v1/namespaces/default/resourceclaims"
_USERS = "/apis/apps/v1/namespaces/default/replicasets"


def with_mounts(name: str, line: str) -> Json:
    """A pod with the mounts of a kubelet plugin."""
    container = shell(name, line, is_privileged=True)
    container["volumeMounts"] = [{"name": key, "mountPath": f"/{key}"} for key in MOUNTS]
    volumes = [{"name": key, "hostPath": {"path": path}} for key, path in MOUNTS.items()]
    return {"containers": [container], "volumes": volumes, "tolerations": [{"operator": "Exists"}]}


@pytest.fixture
def plugin(drivers: Drivers) -> str:
    """A DRA plugin that a deploy label of no known name places; its uid."""
    spec = with_mounts(PLUGIN, UNPREPARING) | {"nodeSelector": {f"{PREFIX}{PLUGIN}": "true"}}
    apply(drivers.api, daemon_set(PLUGIN, NAMESPACE, {"app": PLUGIN, "node-tests": "operand"}, spec))
    drivers.label({f"{PREFIX}{PLUGIN}": "true"})
    wait_until(lambda: drivers.running(PLUGIN), "the plugin runs")
    return uid(drivers.running(PLUGIN)[0])


@pytest.fixture
def csi(drivers: Drivers) -> Iterator[OtherTeam]:
    """A storage plugin of another team, which registers in the same folder."""
    team = OtherTeam(drivers)
    spec = with_mounts(CSI, stopping_after(0)) | {"automountServiceAccountToken": False}
    apply(drivers.api, daemon_set(CSI, OTHER_NAMESPACE, {"app": CSI}, spec))
    wait_until(lambda: team.running(CSI), "the storage plugin runs")
    yield team
    team.remove()


@pytest.fixture
def user(drivers: Drivers, plugin: str) -> Iterator[str]:
    """A pod that holds a claim; its name."""
    serve_dra(drivers.api)
    drivers.api.post(_CLAIMS, claim_body(CLAIM))
    metadata = {"labels": {"app": USER}, "annotations": claims_annotation([PodClaim(CLAIM, claim=CLAIM)])}
    container = shell(USER, ENDING)
    container["volumeMounts"] = [{"name": "plugins", "mountPath": "/plugins"}]
    spec: Json = {"containers": [container], "terminationGracePeriodSeconds": 120}
    spec["volumes"] = [{"name": "plugins", "hostPath": {"path": PLUGINS}}]
    replicas = {"replicas": 1, "selector": {"matchLabels": {"app": USER}}}
    body = {"metadata": {"name": USER}, "spec": {**replicas, "template": {"metadata": metadata, "spec": spec}}}
    drivers.api.post(_USERS, body)
    (pod,) = wait_until(lambda: drivers.users(USER), "the pod with a claim runs")
    name = str(pod["metadata"]["name"])
    drivers.api.patch(f"{_CLAIMS}/{CLAIM}/status", claim_status(NAME, [(name, uid(pod))]))
    yield name
    gone(lambda: drivers.api.delete(f"{_USERS}/{USER}"))
    wait_until(lambda: not drivers.users(USER), "no pod with a claim runs")
    gone(lambda: drivers.api.delete(f"{_CLAIMS}/{CLAIM}"))


def plugins_of(drivers: Drivers) -> Path:
    return drivers.machine.namespaces.root / PLUGINS.lstrip("/")


def uid(pod: Json) -> str:
    return str(pod["metadata"]["uid"])


@pytest.mark.shares(6)
def test_a_pod_with_a_claim_leaves_first_is_unprepared_by_the_plugin_and_the_plugin_leaves_last(
    drivers: Drivers, plugin: str, csi: OtherTeam, user: str
) -> None:
    storage = [uid(pod) for pod in csi.running(CSI)]
    drivers.want(drivers.other_version())
    with Timeline(drivers.machine) as seen:
        drivers.delete_pod()
        drivers.wait_serving()
        plugin_ended_s = seen.ended(plugin)
        requests = [one for one in seen.requests() if one.verb in ("patch", "create") and one.is_counted]
    user_ended_s = (plugins_of(drivers) / "ended").stat().st_mtime
    assert user_ended_s < plugin_ended_s < drivers.unloaded_at()
    paused = [PAUSED in json.dumps(one.body) and f"{PREFIX}{PLUGIN}" in json.dumps(one.body) for one in requests]
    evicted = [(one.subresource, one.name) == ("eviction", user) for one in requests]
    assert evicted.index(True) < paused.index(True), "its label is paused after the eviction"
    assert [uid(pod) for pod in csi.running(CSI)] == storage
