"""What clusters ask for around the pods fits the pods: OpenShift's constraints, the quota, the network policy."""

from __future__ import annotations

import pytest

from driver_manager.domain.profile import Strategy
from driver_manager.profiles import builtin
from scripts.releasing.kustomize import OVERLAYS, ROLLOUTS, Json, only, render

ALL = [
    *((overlay, ("metrics",)) for overlay in OVERLAYS),
    *((rollout, ()) for rollout in ROLLOUTS),
]


def pod_templates(overlay: str, *further: str) -> list[Json]:
    """The pod template of each workload."""
    return [one["spec"]["template"] for one in render(overlay, *further) if one["kind"] in ("DaemonSet", "Deployment")]


@pytest.mark.parametrize(("overlay", "further"), ALL)
def test_the_network_policy_is_for_every_pod_and_opens_every_port_by_its_name(
    overlay: str, further: tuple[str, ...]
) -> None:
    spec = only(render(overlay.partition("/")[0], "network-policy"), "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    open_ports = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
    for template in pod_templates(overlay, *further):
        assert spec["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        ports = {port["name"] for one in template["spec"]["containers"] for port in one.get("ports", [])}
        assert ports <= open_ports
    assert open_ports == {"metrics", "status"}


@pytest.mark.parametrize(("overlay", "further"), ALL)
def test_the_quota_is_about_the_priority_classes_that_the_pods_have(overlay: str, further: tuple[str, ...]) -> None:
    quota = only(render(overlay.partition("/")[0], "resource-quota"), "ResourceQuota")["spec"]
    (about,) = quota["scopeSelector"]["matchExpressions"]
    assert (about["scopeName"], about["operator"]) == ("PriorityClass", "In")
    for template in pod_templates(overlay, *further):
        assert template["spec"]["priorityClassName"] in about["values"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_constraints_allow_what_the_pods_ask_for_and_only_the_rebooter_the_hosts_pids(overlay: str) -> None:
    reboots = builtin()[overlay].strategy is Strategy.REBOOT
    components = ("openshift", *(("openshift-rebooter",) if reboots else ()), "metrics")
    objects = render(overlay, *components)
    for template in pod_templates(overlay, *components):
        spec = template["spec"]
        constraint = only(objects, "SecurityContextConstraints", spec["serviceAccountName"])
        asked = [one.get("securityContext", {}) for one in (*spec.get("initContainers", []), *spec["containers"])]
        assert all(one["privileged"] for one in asked)
        assert constraint["allowPrivilegedContainer"]
        assert constraint["allowHostPID"] is spec.get("hostPID", False)
        kinds = {key for volume in spec["volumes"] for key in volume if key != "name"}
        assert kinds <= set(constraint["volumes"])
        assert constraint["allowHostDirVolumePlugin"]
        assert "hostPath" in kinds
        others = ("allowHostIPC", "allowHostNetwork", "allowHostPorts")
        assert not any(constraint[name] for name in others)
        assert not any(spec.get(name) for name in ("hostIPC", "hostNetwork"))
        # Nobody by name: who may use it is RBAC's, and so is in one namespace.
        assert (constraint["users"], constraint["groups"]) == ([], [])


@pytest.mark.parametrize("rollout", ROLLOUTS)
def test_the_controller_of_rollouts_fits_the_constraints_for_pods_that_are_not_root(rollout: str) -> None:
    objects = render(rollout, "openshift-rollout")
    spec = only(objects, "Deployment")["spec"]["template"]["spec"]
    (binding,) = [one for one in objects if one["metadata"]["name"].endswith("-driver-rollout-scc")]
    assert binding["roleRef"]["name"] == "system:openshift:scc:nonroot-v2"
    assert [subject["name"] for subject in binding["subjects"]] == [spec["serviceAccountName"]]
    # What it allows ("About security context constraints" in OpenShift's manual): any user but root, no escalation, no
    # capability, the runtime's own seccomp profile.
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for one in spec["containers"]:
        assert one["securityContext"]["allowPrivilegeEscalation"] is False
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {key for volume in spec["volumes"] for key in volume if key != "name"} <= {
        "projected",
        "emptyDir",
        "configMap",
    }


@pytest.mark.parametrize("overlay", [*OVERLAYS, *ROLLOUTS])
def test_no_overlay_has_a_namespace_so_that_deleting_one_deletes_none(overlay: str) -> None:
    assert "Namespace" not in {one["kind"] for one in render(overlay)}
