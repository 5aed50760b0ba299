"""What deploy/ has for each vendor fits the code, the cluster around the pods, the docs and the driver containers."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from driver_manager.adapters.kube.leases import LEASE, RECOVERY_LEASE, rollout_lease
from driver_manager.adapters.report.http import parse_address
from driver_manager.cli.main import cli
from driver_manager.domain import settings
from driver_manager.domain.fleet.spec import GROUP, KIND, PLURAL, VERSION, read
from driver_manager.domain.profile import RecoveryStep, Strategy, parse_steps
from driver_manager.profiles import builtin
from scripts.releasing import chart, kustomize
from scripts.releasing.kustomize import DEPLOY, EXAMPLES, OVERLAYS, REBOOTERS, ROLLOUTS, Json, only, render
from tests.support.deploy.renderings import FLEETS, SETS, kustomized, shown
from tests.support.docs.console import commands
from tests.support.docs.markdown import DOCS, ROOT
from tests.support.fakes.rollout_objects import zones

PROFILES = builtin()
IMAGE_TAG = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
COMPONENTS = sorted(path.name for path in (DEPLOY / "components").iterdir() if path.name != kustomize.IN_NAMESPACE)
KNOWN = {name for _, group in settings.HEADINGS for setting in group for name in (setting.env, *setting.also)}
WITH_PORTS = [*((overlay, ("metrics",)) for overlay in OVERLAYS), *((rollout, ()) for rollout in ROLLOUTS)]
DRIVERS = {"rebellions-driver": "rebellions", "nvidia-driver": "nvidia", "ascend-driver": "ascend"}
"""The examples of driver containers, with their overlays."""

KERNEL = "6.1.0-18-amd64"
RECOVERING = [vendor for vendor, names in chart.offered().items() if "recovery" in names]
each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def templates(objects: list[Json]) -> list[Json]:
    return [one["spec"]["template"] for one in objects if one["kind"] in ("DaemonSet", "Deployment")]


def containers_of(template: Json) -> dict[str, Json]:
    spec = template["spec"]
    return {one["name"]: one for one in (*spec.get("initContainers", []), *spec["containers"])}


def driver_pod(objects: list[Json]) -> Json:
    (found,) = [one for one in objects if one["kind"] == "DaemonSet" and one["metadata"]["name"].endswith("-driver")]
    template: Json = found["spec"]["template"]
    return template


def env(container: Json) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container.get("env", []) if "value" in one}


def digests(template: Json) -> dict[str, str]:
    """DRIVER_CONFIG_DIGEST of every container that has one, as the kubelet sets it from the pod's annotations."""
    notes = {f"metadata.annotations['{key}']": value for key, value in template["metadata"]["annotations"].items()}
    given = [(name, one) for name, container in containers_of(template).items() for one in container.get("env", [])]
    sources = {name: one["valueFrom"] for name, one in given if one["name"] == "DRIVER_CONFIG_DIGEST"}
    return {name: notes[source["fieldRef"]["fieldPath"]] for name, source in sources.items()}


def volume_kinds(spec: Json) -> set[str]:
    return {key for volume in spec["volumes"] for key in volume if key != "name"}


def volume_at(template: Json, container: Json, path: str) -> Json:
    """The volume whose mount in the container contains `path`."""
    (mount,) = [one for one in container["volumeMounts"] if path.startswith(one["mountPath"] + "/")]
    (volume,) = [one for one in template["spec"]["volumes"] if one["name"] == mount["name"]]
    found: Json = volume
    return found


def test_what_the_renderer_does_not_understand_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    monkeypatch.setattr(kustomize, "DEPLOY", tmp_path / "deploy")
    with (tmp_path / "deploy/overlays/rebellions/kustomization.yaml").open("a") as file:
        file.write("nameSuffix: -x\n")
    with pytest.raises(kustomize.NotRenderedError, match="nameSuffix"):
        render("rebellions")


def test_every_component_fits_an_overlay() -> None:
    fitting = {name for names in chart.offered().values() for name in names}
    assert fitting == set(COMPONENTS) - {"namespace"}


@each_overlay
def test_an_overlay_is_its_profiles(overlay: str) -> None:
    profile, objects = PROFILES[overlay], render(overlay)
    namespace = only(render(f"{overlay}/namespace"), "Namespace")["metadata"]
    assert namespace["name"] == profile.namespace
    modes = {f"pod-security.kubernetes.io/{mode}" for mode in ("enforce", "warn", "audit")}
    assert namespace["labels"] == dict.fromkeys(modes, "privileged")
    kinds = {one["kind"] for one in (*objects, *render(f"{overlay}/rollout"))}
    assert "Namespace" not in kinds, "deleting deletes none"
    spec = only(objects, "DaemonSet", f"{overlay}-driver")["spec"]
    template = spec["template"]
    wanted = profile.deploy.driver_key if profile.deploy.prefix else profile.present_labels[0]
    assert template["spec"]["nodeSelector"] == {wanted: "true"}
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    by_name = containers_of(template)
    profiles = {name: env(one).get("DRIVER_PROFILE") for name, one in by_name.items()}
    assert profiles == {"k8s-driver-manager": overlay, "health-watch": overlay, "driver": None}
    driver, paths = env(by_name["driver"]), profile.paths
    given = (driver["DRIVER_ROOT"], driver["STATE_FILE"], driver.get("READY_MARKER", ""))
    assert given == (paths.driver_root, paths.state_file, paths.ready_marker)
    assert driver["DRIVER_MODULE"] in profile.modules.roots
    assert driver.get("DRIVER_MODULES", "").split() in ([], list(profile.modules.order))
    assert digests(template) == {"k8s-driver-manager": "sample-2.0.1", "driver": "sample-2.0.1"}
    assert json.dumps(template).count("sample-2.0.1") == 1, "the digest is written in one place"
    images = {one["image"] for one in by_name.values()}
    assert images == {f"driver-manager:{IMAGE_TAG}", f"driver-manager-sample-driver:{IMAGE_TAG}"}


@each_overlay
def test_each_container_can_write_what_it_writes_and_sees_the_rest_read_only(overlay: str) -> None:
    paths, checked = PROFILES[overlay].paths, set()
    kept = {paths.evidence, paths.client_record, paths.client_lock}
    kept |= {paths.recovery_record, paths.reload_request} if overlay in RECOVERING else set()
    written = {
        "k8s-driver-manager": {paths.work_lock, paths.state_file, paths.load_record, *paths.artifacts, *kept},
        # The driver container loads while the watch runs, so the device nodes are younger than the watch.
        "health-watch": {paths.work_lock, paths.health_record, paths.ready_marker, "/dev/x", *kept},
        "rebooter": {paths.work_lock, paths.rebooter_record, paths.reboot_evidence},
    }
    beside = f"{overlay}/rebooter"  # where the overlay does not contain it
    for template in templates([*render(overlay), *(render(beside) if beside in REBOOTERS else [])]):
        hosts = {one["name"]: one["hostPath"]["path"] for one in template["spec"]["volumes"] if "hostPath" in one}
        for name, container in containers_of(template).items():
            if name != "driver":
                mounts = [one for one in container["volumeMounts"] if not one.get("readOnly") and one["name"] in hosts]
                assert all(hosts[one["name"]] == one["mountPath"] for one in mounts)
                needed = {path for path in (*written[name], paths.reboot_marker) if path}
                folders = tuple(f"{one['mountPath']}/" for one in mounts)
                assert not [path for path in needed if not path.startswith(folders)], name
                (host,) = [one for one in container["volumeMounts"] if one["mountPath"] == "/host"]
                assert (host["readOnly"], host["mountPropagation"]) == (True, "HostToContainer")
                checked.add(name)
    assert checked == written.keys()


@pytest.mark.parametrize("folder", REBOOTERS)
def test_a_rebooter_stays_on_a_node_whose_deploy_labels_are_paused(folder: str) -> None:
    profile = PROFILES[folder.partition("/")[0]]
    selector = only(render(folder), "DaemonSet")["spec"]["template"]["spec"]["nodeSelector"]
    assert profile.deploy_keys(selector).isdisjoint(selector)
    assert not profile.present_labels or list(selector) == list(profile.present_labels)


@each_overlay
def test_only_who_talks_to_the_api_server_has_a_token(overlay: str) -> None:
    objects, holders = render(overlay), list[tuple[str, str]]()
    assert not [one for one in objects if one["kind"] == "ServiceAccount" and one["automountServiceAccountToken"]]
    for template in templates(objects):
        tokens = {one["name"] for one in template["spec"]["volumes"] if "projected" in one}
        for name, container in containers_of(template).items():
            holders += [(name, one["name"]) for one in container.get("volumeMounts", []) if one["name"] in tokens]
    # Each its own: one that is read by a container that runs the vendor's tool is not the one that a run works with.
    rebooter = [("rebooter", "api-access")] if PROFILES[overlay].strategy is Strategy.REBOOT else []
    assert sorted(holders) == [("health-watch", "watch-access"), ("k8s-driver-manager", "api-access"), *rebooter]


@pytest.mark.parametrize(("overlay", "further"), SETS, ids=shown)
def test_readiness_is_asked_by_the_port_where_there_is_one_and_else_by_the_file(
    overlay: str, further: tuple[str, ...]
) -> None:
    template = driver_pod(render(overlay, *further))
    watch = containers_of(template)["health-watch"]
    path, probe = env(watch)[settings.HEALTH_WATCH_READY_FILE.env], watch["readinessProbe"]
    by_port = {"httpGet": {"path": "/readyz", "port": "metrics"}}
    wanted = by_port if "metrics" in further else {"exec": {"command": ["test", "-e", path]}}
    assert {key: probe[key] for key in ("httpGet", "exec") if probe.get(key)} == wanted
    assert probe["failureThreshold"] == 1
    assert "emptyDir" in volume_at(template, watch, path), "it outlives the container, and not the pod"


@pytest.mark.parametrize(("overlay", "further"), SETS + FLEETS, ids=shown)
def test_each_loop_is_asked_whether_it_hangs_and_each_container_requests_what_it_takes(
    overlay: str, further: tuple[str, ...]
) -> None:
    for template in templates(render(overlay, *further)):
        for name, container in containers_of(template).items():
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}, name
            probe = container.get("livenessProbe", {})
            asked = probe.get("exec", probe.get("httpGet"))
            path = env(container).get(settings.ALIVE_FILE.env, "")
            if name == "controller" or (name == "health-watch" and "metrics" in further):
                assert asked["path"] == "/healthz"
            elif name in ("health-watch", "rebooter"):
                assert asked["command"] == ["test", path, "-nt", "/proc/self"]
                assert "emptyDir" in volume_at(template, container, path)
                assert probe["periodSeconds"] * probe["failureThreshold"] >= LOOP_START_S
            else:
                assert probe == {}, name


LOOP_START_S = 120
"""Seconds in which a container of a slow node starts its loop."""


@pytest.mark.submission
def test_every_command_line_and_every_variable_of_ours_is_understood() -> None:
    for overlay, further in SETS + FLEETS:
        for template in templates(render(overlay, *further)):
            ours = {name: one for name, one in containers_of(template).items() if name != "driver"}
            for name, container in ours.items():
                words: list[str] = [*container["command"], *container.get("args", [])]
                assert words.pop(0) == "driver-manager"
                command: click.Command | None = cli
                while isinstance(command, click.Group):
                    command = command.get_command(click.Context(command), words.pop(0))
                assert command is not None, container["args"]
                given = command.make_context(str(command.name), words).params
                address = given.get("metrics_addr") or env(container).get(settings.ROLLOUT_STATUS_ADDR.env)
                ports = [one["containerPort"] for one in container.get("ports", [])]
                assert ports == ([parse_address(address)[1]] if address else []), (overlay, name)
                assert {one["name"] for one in container["env"]} <= KNOWN, (overlay, name)


def rights(roles: list[Json]) -> Iterator[tuple[Json, str, str, str]]:
    """Metadata of the role, group, resource and verb of each right."""
    for metadata, rule in ((role["metadata"], rule) for role in roles for rule in role.get("rules", [])):
        named = itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])
        yield from ((metadata, group, resource, verb) for group, resource, verb in named)


@pytest.mark.submission
def test_no_right_is_given_twice_or_by_a_star() -> None:
    for overlay, further in SETS + FLEETS:
        # The rebooter's own account may hold what the agent's holds too.
        given = [
            # components/recovery works without components/eviction, and has a part of its rights.
            (re.findall("rebooter|recovery", role["name"]) != [], role.get("namespace", ""), *rest)
            for role, *rest in rights(render(overlay, *further))
        ]
        assert given
        assert not [right for right in given if "*" in "".join(right[2:])]
        assert len(given) == len(set(given))
        wide = {(account, *rest) for account, namespace, *rest in given if not namespace}
        assert not [right for right in given if right[1] and (right[0], *right[2:]) in wide]


@pytest.mark.parametrize(
    "alike", [ROLLOUTS, *([one for one in OVERLAYS if PROFILES[one].strategy is kind] for kind in Strategy)]
)
def test_drivers_of_one_strategy_and_all_rollouts_have_the_same_rights(alike: list[str]) -> None:
    """So what the cluster tier proves of one holds for the others."""
    found = []
    for name in alike:
        lease, roles = rollout_lease(name.split("/")[0]), [one for one in render(name) if "rules" in one]
        rules = ((one["metadata"]["name"], str(one["rules"]).replace(lease, "")) for one in roles)
        found.append(sorted((role.partition("-")[2], text) for role, text in rules))
    assert len(found) > 1
    assert found == [found[0]] * len(found)


@each_overlay
def test_only_a_driver_that_leaves_a_running_kernel_has_rights_over_pods(overlay: str) -> None:
    names = {one["metadata"]["name"] for one in render(overlay) if one["kind"] == "ClusterRole"}
    swaps = PROFILES[overlay].strategy is Strategy.IN_PLACE
    assert (f"{overlay}-driver-in-place" in names, f"{overlay}-driver-eviction" in names) == (swaps, swaps)


@pytest.mark.parametrize(
    ("folder", "role", "lease"),
    [
        ("ascend", "ascend-driver-rebooter", LEASE),
        *((f"{one}/rollout", f"{one}-driver-rollout-lease", rollout_lease(one)) for one in OVERLAYS),
        *((one, f"{one}-driver-recovery", RECOVERY_LEASE) for one in RECOVERING),
    ],
)
def test_the_lease_that_a_rule_names_is_the_one_that_is_used(folder: str, role: str, lease: str) -> None:
    objects = render(folder, *(("recovery",) if lease == RECOVERY_LEASE else ()))
    (rule,) = [one for one in only(objects, "Role", role)["rules"] if "resourceNames" in one]
    assert rule["resourceNames"] == [lease]


def test_every_mount_and_every_verb_has_its_reason() -> None:
    sources = [path for path in DEPLOY.rglob("*.yaml") if "charts" not in path.relative_to(DEPLOY).parts]
    assert len(sources) > 50
    for path in sources:
        lines = path.read_text().splitlines()
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if path.name == "rbac.yaml" and re.fullmatch(r" {6}- \w+( .*)?", line):
                assert re.search(r"  # \S", line), f"{path.name}: {line}"
            if line.strip() == "volumeMounts:":
                assert following.strip().startswith("#"), path


@pytest.mark.parametrize(("overlay", "further"), WITH_PORTS)
def test_network_policy_and_quota_are_for_every_pod_and_port(overlay: str, further: tuple[str, ...]) -> None:
    objects = render(overlay.partition("/")[0], "network-policy", "resource-quota")
    policy, quota = (only(objects, kind)["spec"] for kind in ("NetworkPolicy", "ResourceQuota"))
    assert policy["policyTypes"] == ["Ingress"]
    open_ports = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert open_ports == {"metrics", "status"}
    (about,) = quota["scopeSelector"]["matchExpressions"]
    assert (about["scopeName"], about["operator"]) == ("PriorityClass", "In")
    for template in templates(render(overlay, *further)):
        (instances,) = policy["podSelector"]["matchExpressions"]
        assert template["metadata"]["labels"][instances["key"]] in instances["values"]
        assert {port["name"] for one in template["spec"]["containers"] for port in one.get("ports", [])} <= open_ports
        assert template["spec"]["priorityClassName"] in about["values"]


@each_overlay
def test_the_constraints_allow_what_the_pods_ask_for_and_only_the_rebooter_the_hosts_pids(overlay: str) -> None:
    reboots = PROFILES[overlay].strategy is Strategy.REBOOT
    objects = render(overlay, "openshift", *(("openshift-rebooter",) if reboots else ()), "metrics")
    for template in templates(objects):
        spec = template["spec"]
        constraint = only(objects, "SecurityContextConstraints", spec["serviceAccountName"])
        assert all(one.get("securityContext", {})["privileged"] for one in containers_of(template).values())
        assert (constraint["allowPrivilegedContainer"], constraint["allowHostDirVolumePlugin"]) == (True, True)
        assert constraint["allowHostPID"] is spec.get("hostPID", False)
        assert {"hostPath"} <= volume_kinds(spec) <= set(constraint["volumes"])
        assert not any(constraint[name] for name in ("allowHostIPC", "allowHostNetwork", "allowHostPorts"))
        assert not any(spec.get(name) for name in ("hostIPC", "hostNetwork"))
        # No account by name: RBAC says who may use it, and so in one namespace.
        assert (constraint["users"], constraint["groups"]) == ([], [])


@each_overlay
def test_the_clients_component_brings_one_selector_its_rights_and_no_consent(overlay: str) -> None:
    before, after = render(overlay), render(overlay, "clients")
    source = {"fieldRef": {"fieldPath": f"metadata.annotations['{GROUP}/client-selector']"}}
    selector = {"name": settings.CLIENT_SELECTOR.env, "valueFrom": source}
    consent = {"name": settings.RESTART_CLIENTS.env, "value": "false"}
    for name, wanted in (("health-watch", [selector]), ("k8s-driver-manager", [selector, consent])):
        own, other = (containers_of(driver_pod(objects))[name]["env"] for objects in (before, after))
        assert [one for one in other if one not in own] == wanted
    template = driver_pod(after)
    assert template["metadata"]["annotations"][f"{GROUP}/client-selector"] == ""
    known = {(one["kind"], one["metadata"]["name"]) for one in before}
    new = {key: one for one in after if (key := (one["kind"], one["metadata"]["name"])) not in known}
    binding = ("ClusterRoleBinding", f"{overlay}-driver-clients")
    assert new.keys() == {("ClusterRole", f"{overlay}-driver-clients"), binding}
    assert [one["name"] for one in new[binding]["subjects"]] == [template["spec"]["serviceAccountName"]]


@each_overlay
def test_health_watch_has_the_consents_of_the_run(overlay: str) -> None:
    by_name = containers_of(driver_pod(render(overlay)))
    both = (env(by_name[one]).items() for one in ("k8s-driver-manager", "health-watch"))
    run, watch = ([one for one in given if "NPU_POD_EVICTION" in one[0]] for given in both)
    assert sorted(watch) == sorted(run)
    assert bool(run) is (PROFILES[overlay].strategy is Strategy.IN_PLACE)


@each_overlay
def test_the_recovery_component_is_for_profiles_with_more_than_a_reboot_and_brings_no_consent(overlay: str) -> None:
    assert (overlay in RECOVERING) is any(step is not RecoveryStep.REBOOT for step in PROFILES[overlay].recovery)
    both = (render(overlay), render(overlay, "recovery"))
    own, other = (containers_of(driver_pod(objects))["health-watch"]["env"] for objects in both)
    namespace = {"fieldRef": {"fieldPath": "metadata.namespace"}}
    consent = {"name": settings.AUTO_RECOVER.env, "value": ""}
    wanted = [consent, {"name": settings.OPERATOR_NAMESPACE.env, "valueFrom": namespace}]
    assert [one for one in other if one not in own] == wanted
    assert parse_steps("") == frozenset()


@each_overlay
def test_the_controller_of_rollouts_fits_its_profile_and_has_nothing_of_a_host(overlay: str) -> None:
    objects, namespace = render(f"{overlay}/rollout", "openshift-rollout"), PROFILES[overlay].namespace
    deployment = only(objects, "Deployment")
    assert deployment["metadata"]["namespace"] == namespace
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert env(container)["DRIVER_PROFILE"] == overlay
    assert container["image"] == f"driver-manager:{IMAGE_TAG}"
    (port,) = container["ports"]
    assert env(container)[settings.ROLLOUT_STATUS_ADDR.env] == f":{port['containerPort']}"
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    assert not {"hostPID", "hostNetwork", "hostIPC"} & spec.keys()
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    # What OpenShift's constraint allows ("About security context constraints" in its manual): any user but root, no
    # escalation, no capability, the runtime's own seccomp profile.
    (binding,) = [one for one in objects if one["metadata"]["name"].endswith("-driver-rollout-scc")]
    assert binding["roleRef"]["name"] == "system:openshift:scc:nonroot-v2"
    assert [subject["name"] for subject in binding["subjects"]] == [spec["serviceAccountName"]]
    context = spec["securityContext"]
    assert (context["runAsNonRoot"], context["runAsUser"] > 0) == (True, True)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    own = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == own
    assert volume_kinds(spec) <= {"projected", "emptyDir", "configMap"}


@each_overlay
def test_one_replica_of_the_controller_stays_while_a_node_is_drained_and_none_while_it_is_updated(overlay: str) -> None:
    objects = render(f"{overlay}/rollout")
    deployment, budget = only(objects, "Deployment")["spec"], only(objects, "PodDisruptionBudget")
    # An update ends all old controllers first, as their Lease may have another name.
    wanted = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}}
    assert deployment["strategy"] == wanted
    assert budget["apiVersion"] == "policy/v1"
    assert budget["spec"]["maxUnavailable"] < deployment["replicas"]
    (spread,) = deployment["template"]["spec"]["topologySpreadConstraints"]
    for selector in (budget["spec"]["selector"], spread["labelSelector"], deployment["selector"]):
        assert selector["matchLabels"] == deployment["template"]["metadata"]["labels"]


@each_overlay
def test_the_controllers_rights_over_the_whole_cluster_are_nodes_and_reading_pods(overlay: str) -> None:
    objects = render(f"{overlay}/rollout")
    wide = {(resource, verb) for _, _, resource, verb in rights([only(objects, "ClusterRole")])}
    assert wide == {("nodes", "list"), ("nodes", "watch"), ("nodes", "patch"), ("pods", "list"), ("pods", "watch")}
    spaces = {one["metadata"].get("namespace") for one in objects if one["kind"] == "Role"}
    assert spaces == {"default", PROFILES[overlay].namespace}
    assert "secrets" not in json.dumps([one["rules"] for one in objects if "rules" in one])
    definition = only(objects, "CustomResourceDefinition")["metadata"]
    assert (definition["name"], "namespace" in definition) == (f"{PLURAL}.{GROUP}", False), "under every prefix"


@each_overlay
def test_the_example_of_a_rollout_fits_its_overlay(overlay: str) -> None:
    body: Any = yaml.safe_load((DEPLOY / "overlays" / overlay / "rollout/driverrollout.yaml").read_text())
    assert (body["apiVersion"], body["kind"]) == (f"{GROUP}/{VERSION}", KIND)
    found = read(body, zones)
    assert found.problems == ()
    assert found.policy is not None
    assert found.policy.daemon_set == f"{overlay}-driver"
    assert found.namespace == only(render(overlay), "DaemonSet", found.policy.daemon_set)["metadata"]["namespace"]
    assert found.policy.approves_reboots is (PROFILES[overlay].strategy is Strategy.REBOOT)


def documented(page: str, title: str = "") -> str:
    """The first YAML block of the page, or the one that begins with the comment `title`."""
    begin = f"# {title}\n" if title else ""
    found = re.findall(rf"```yaml\n{begin}(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert len(found) == 1
    return str(found[0])


def mine(kustomization: str, folder: Path) -> list[Json]:
    """What kubectl makes of this kustomization in the folder `mine` beside deploy/."""
    shutil.copytree(DEPLOY, folder / "deploy")
    (folder / "mine").mkdir()
    (folder / "mine/kustomization.yaml").write_text(kustomization)
    return kustomized(folder / "mine")


def test_the_rollout_in_the_documentation_is_read_as_it_is_written() -> None:
    body: Any = yaml.safe_load(documented("rollout.md"))
    assert (body["apiVersion"], body["kind"]) == (f"{GROUP}/{VERSION}", KIND)
    assert read(body, zones).problems == ()


@pytest.mark.submission
def test_the_overlay_of_ones_own_in_the_documentation_renders_and_its_component_is_in_its_namespace(
    tmp_path: Path,
) -> None:
    parts = ("mine/kustomization.yaml", "mine/kustomization.yaml, continued")
    objects = mine("".join(documented("install.md", part) for part in parts), tmp_path)
    monitors = [one for one in objects if one["kind"] in ("PodMonitor", "PrometheusRule")]
    assert [one["metadata"]["namespace"] for one in monitors] == ["rbln-system"] * 3
    template = driver_pod(objects)
    by_name = containers_of(template)
    assert "sample-driver" not in json.dumps(by_name["driver"]), "no command of the sample is left"
    assert by_name["k8s-driver-manager"]["image"].startswith("registry.example.com/driver-manager:")
    assert by_name["driver"]["image"] == "registry.example.com/my-driver:2.0.1"
    assert digests(template) == {"k8s-driver-manager": "my-driver-2.0.1", "driver": "my-driver-2.0.1"}


def test_the_documentation_names_every_overlay_and_component_and_nothing_that_is_not_there() -> None:
    text = "".join((DOCS / name).read_text() for name in ("install.md", "migrating.md"))
    named = {path.rstrip("/.") for path in re.findall(r"`((?:deploy|tests)/[\w./-]+)`", text)}
    assert [path for path in named if not (ROOT / path).exists()] == []
    offered = {f"deploy/components/{name}" for name in COMPONENTS} | {f"deploy/overlays/{name}" for name in OVERLAYS}
    assert offered <= named
    variables = set(re.findall(r"`((?:ENABLE|DRAIN|NPU|DRIVER|POD|AUTO|REBOOT|SAFE|PROC)_[A-Z_]+)`", text))
    assert variables - KNOWN <= {"DRIVER_VERSION"}, "NVIDIA's and the driver container's"


def test_the_page_of_driver_containers_has_every_example_and_every_image_and_no_other() -> None:
    page = DOCS / "driver-containers.md"
    folders = {path.name for path in (DEPLOY / "examples").iterdir()}
    assert folders == set(EXAMPLES) == set(re.findall(r"deploy/examples/([\w-]+)", page.read_text()))
    typed = [one.text for one in commands(page)]
    applied = {word for line in typed if " apply " in line for word in shlex.split(line) if word.startswith("deploy/")}
    assert applied == {f"deploy/examples/{name}" for name in folders}
    built = {shlex.split(line)[-1] for line in typed if line.startswith("buildah build")}
    assert built == {"images/rebellions-driver", "images/ascend-driver"}


@pytest.mark.parametrize(("example", "overlay"), DRIVERS.items())
def test_an_example_changes_its_overlays_driver_container_alone(example: str, overlay: str) -> None:
    template, profile = driver_pod(kustomize.render_example(example)), builtin()[overlay]
    plain, changed = containers_of(driver_pod(render(overlay))), containers_of(template)
    driver = changed["driver"]
    assert {**changed, "driver": plain["driver"]} == plain
    tag = driver["image"].rpartition(":")[2].split("-")[0]
    digest = template["metadata"]["annotations"][f"{GROUP}/driver-config-digest"]
    assert tag in digest, "another image is another digest"
    assert "sample-driver" not in str(driver), "no command of the sample is left"
    given = env(driver)
    assert (given["DRIVER_ROOT"], given["STATE_FILE"]) == (profile.paths.driver_root, profile.paths.state_file)
    if overlay == "nvidia":
        assert driver["image"].startswith(f"nvcr.io/nvidia/driver:{given['DRIVER_VERSION']}-")
        assert profile.container_unloads, "so a node is cleared before its pod is deleted"


def test_a_kernels_daemon_set_selects_its_own_nodes_and_its_own_pods() -> None:
    name = f"linux-{KERNEL.replace('.', '-')}-rebellions-driver"
    spec = only(kustomize.render_example("rebellions-one-kernel"), "DaemonSet", name)["spec"]
    labels = spec["selector"]["matchLabels"]
    assert labels.items() <= spec["template"]["metadata"]["labels"].items()
    assert labels["app.kubernetes.io/instance"] == name
    selector = {"rebellions.ai/npu.deploy.driver": "true", "feature.node.kubernetes.io/kernel-version.full": KERNEL}
    assert spec["template"]["spec"]["nodeSelector"] == selector


def test_what_the_entry_programs_share_is_written_once() -> None:
    function = re.compile(r"^(\w+)\(\) \{", re.MULTILINE)
    shared = set(function.findall((ROOT / "images/common/driver-container.sh").read_text()))
    for kind in ("sample-driver", "rebellions-driver", "ascend-driver"):
        text = (ROOT / "images" / kind / kind).read_text()
        assert "common/driver-container.sh" in text
        assert not shared & set(function.findall(text)), kind
