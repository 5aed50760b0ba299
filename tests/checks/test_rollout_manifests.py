"""What deploy/ has for the fleet: a controller without anything of a host, and an example that fits its overlay."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest
import yaml

from driver_manager.domain import settings
from driver_manager.domain.fleet.spec import GROUP, KIND, PLURAL, VERSION, RolloutObject, RolloutPolicy, read
from driver_manager.domain.profile import Strategy
from driver_manager.profiles import builtin
from scripts.releasing.kustomize import DEPLOY, OVERLAYS, Json, only, render
from tests.support.fakes.rollout_objects import zones

PROFILES = builtin()


def fleet(overlay: str) -> list[Json]:
    return render(f"{overlay}/rollout")


def controller(overlay: str) -> tuple[Json, Json]:
    """The pod template of the controller and its one container."""
    template = only(fleet(overlay), "Deployment")["spec"]["template"]
    (container,) = template["spec"]["containers"]
    return template, container


def example(overlay: str) -> tuple[Json, RolloutObject, RolloutPolicy]:
    """The overlay's example, as it is written and as it is read."""
    body: Any = yaml.safe_load((DEPLOY / "overlays" / overlay / "rollout/driverrollout.yaml").read_text())
    found = read(body, zones)
    assert found.problems == ()
    assert found.policy is not None
    return body, found, found.policy


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_example_is_about_the_daemon_set_of_its_overlay(overlay: str) -> None:
    body, found, policy = example(overlay)
    assert (body["apiVersion"], body["kind"]) == (f"{GROUP}/{VERSION}", KIND)
    daemon_set = only(render(overlay), "DaemonSet", policy.daemon_set)
    assert daemon_set["metadata"]["namespace"] == found.namespace
    assert daemon_set["spec"]["updateStrategy"] == {"type": "OnDelete"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_example_approves_reboots_only_where_drivers_need_them(overlay: str) -> None:
    _, _, policy = example(overlay)
    assert policy.approves_reboots is (PROFILES[overlay].strategy is Strategy.REBOOT)


def test_the_object_in_the_documentation_is_read_as_it_is_written() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (DEPLOY.parent / "docs/rollout.md").read_text(), re.DOTALL)
    body: Any = yaml.safe_load(text)
    assert (body["apiVersion"], body["kind"]) == (f"{GROUP}/{VERSION}", KIND)
    assert read(body, zones).problems == ()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_controller_has_its_profile_namespace_and_version(overlay: str) -> None:
    _, container = controller(overlay)
    env = {one["name"]: one["value"] for one in container["env"]}
    assert env["DRIVER_PROFILE"] == overlay
    assert only(fleet(overlay), "Deployment")["metadata"]["namespace"] == PROFILES[overlay].namespace
    version = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["version"]
    assert container["image"] == f"driver-manager:{version}"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_controller_has_nothing_of_a_host(overlay: str) -> None:
    template, container = controller(overlay)
    spec, own = template["spec"], container["securityContext"]
    assert not {"hostPID", "hostNetwork", "hostIPC"} & spec.keys()
    assert [one for one in spec["volumes"] if "hostPath" in one] == []
    assert spec["securityContext"]["runAsNonRoot"]
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all(mount["readOnly"] for mount in container["volumeMounts"])


@pytest.mark.submission
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_one_replica_stays_while_a_node_is_drained(overlay: str) -> None:
    deployment = only(fleet(overlay), "Deployment")["spec"]
    budget = only(fleet(overlay), "PodDisruptionBudget")
    labels = deployment["template"]["metadata"]["labels"]
    assert budget["apiVersion"] == "policy/v1"
    assert budget["spec"]["maxUnavailable"] < deployment["replicas"]
    (spread,) = deployment["template"]["spec"]["topologySpreadConstraints"]
    for selector in (budget["spec"]["selector"], spread["labelSelector"], deployment["selector"]):
        assert selector["matchLabels"] == labels


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_ask_the_port_that_is_served(overlay: str) -> None:
    _, container = controller(overlay)
    env = {one["name"]: one["value"] for one in container["env"]}
    (port,) = container["ports"]
    assert env[settings.ROLLOUT_STATUS_ADDR.env] == f":{port['containerPort']}"
    probes = {name: container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
    assert probes == {
        "livenessProbe": {"path": "/healthz", "port": port["name"]},
        "readinessProbe": {"path": "/readyz", "port": port["name"]},
    }


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_nodes_and_reading_pods_are_rights_over_the_whole_cluster(overlay: str) -> None:
    found = fleet(overlay)
    wide = only(found, "ClusterRole")["rules"]
    assert {(resource, verb) for rule in wide for resource in rule["resources"] for verb in rule["verbs"]} == {
        ("nodes", "list"),
        ("nodes", "watch"),
        ("nodes", "patch"),
        ("pods", "list"),
        ("pods", "watch"),
    }
    assert {one["metadata"].get("namespace") for one in found if one["kind"] == "Role"} == {
        "default",
        PROFILES[overlay].namespace,
    }
    assert "secrets" not in json.dumps([one["rules"] for one in found if "rules" in one])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_lease_that_a_rule_names_is_the_one_that_is_held(overlay: str) -> None:
    role = only(fleet(overlay), "Role", f"{overlay}-driver-rollout")
    (rule,) = [one for one in role["rules"] if "resourceNames" in one]
    assert rule["resourceNames"] == [settings.ROLLOUT_LEASE.default]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_definition_keeps_its_name_under_every_prefix(overlay: str) -> None:
    assert only(fleet(overlay), "CustomResourceDefinition")["metadata"]["name"] == f"{PLURAL}.{GROUP}"
    assert "namespace" not in only(fleet(overlay), "CustomResourceDefinition")["metadata"]
