"""deploy/ renders as kustomize renders it, and every overlay says what the code and the operators' contract say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from driver_manager.adapters.kube.leases import LEASE
from driver_manager.adapters.report.http import parse_address
from driver_manager.cli.main import cli
from driver_manager.domain import settings
from driver_manager.domain.profile import Profile, Strategy
from driver_manager.profiles import builtin
from scripts.releasing import kustomize
from scripts.releasing.kustomize import DEPLOY, NAMESPACES, OVERLAYS, POLICIES, ROLLOUTS, Json, only, render
from tests.support.deploy.renderings import FLEETS, SETS, kubectl

PROFILES = builtin()
COMPONENTS = sorted(path.name for path in (DEPLOY / "components").iterdir())
KNOWN = {
    name
    for group in (
        settings.CLUSTER,
        settings.HOST,
        settings.DRIVER,
        settings.WORKLOADS,
        settings.HEALTH,
        settings.REBOOTER,
        settings.ROLLOUT,
    )
    for setting in group
    for name in (setting.env, *setting.also)
}


def containers(objects: list[Json], daemon_set: str) -> dict[str, Json]:
    """All containers of the DaemonSet whose name ends so."""
    (found,) = [
        one for one in objects if one["kind"] == "DaemonSet" and one["metadata"]["name"].partition("-")[2] == daemon_set
    ]
    spec = found["spec"]["template"]["spec"]
    return {one["name"]: one for one in (*spec.get("initContainers", []), *spec["containers"])}


def env(container: Json) -> dict[str, str]:
    """Its literal environment."""
    return {one["name"]: one["value"] for one in container.get("env", []) if "value" in one}


def digests(template: Json) -> dict[str, str]:
    """DRIVER_CONFIG_DIGEST of every container that has one, as the kubelet sets it from the pod's annotations."""
    spec, notes = template["spec"], template["metadata"].get("annotations", {})
    found = {}
    for container in (*spec.get("initContainers", []), *spec["containers"]):
        for one in container.get("env", []):
            if one["name"] == "DRIVER_CONFIG_DIGEST":
                path = one["valueFrom"]["fieldRef"]["fieldPath"]
                found[container["name"]] = notes[path.removeprefix("metadata.annotations['").removesuffix("']")]
    return found


def test_what_is_not_understood_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    monkeypatch.setattr(kustomize, "DEPLOY", tmp_path / "deploy")
    file = tmp_path / "deploy/overlays/rebellions/kustomization.yaml"
    file.write_text(file.read_text() + "nameSuffix: -x\n")
    with pytest.raises(kustomize.NotRenderedError, match="nameSuffix"):
        render("rebellions")


def test_every_component_is_offered_by_an_overlay() -> None:
    folders = (*OVERLAYS, *ROLLOUTS, *NAMESPACES, *POLICIES)
    texts = [(DEPLOY / "overlays" / name / "kustomization.yaml").read_text() for name in folders]
    offered = {name for text in texts for name in re.findall(r"components/(\S+)", text)}
    assert offered == set(COMPONENTS)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_its_profiles(overlay: str) -> None:
    profile = PROFILES[overlay]
    objects = render(overlay)
    assert only(render(f"{overlay}/namespace"), "Namespace")["metadata"]["name"] == profile.namespace
    spec = only(objects, "DaemonSet", f"{overlay}-driver")["spec"]
    (selector,) = spec["template"]["spec"]["nodeSelector"].items()
    wanted = profile.deploy.driver_key if profile.deploy.prefix else profile.present_labels[0]
    assert selector == (wanted, "true")
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    by_name = containers(objects, "driver")
    told = {name: env(one).get("DRIVER_PROFILE") for name, one in by_name.items()}
    assert told == {"k8s-driver-manager": overlay, "health-watch": overlay, "driver": None}
    driver = env(by_name["driver"])
    assert driver["DRIVER_ROOT"] == profile.paths.driver_root
    assert driver["DRIVER_MODULE"] in profile.modules.roots
    assert driver.get("DRIVER_MODULES", "").split() in ([], list(profile.modules.order))
    assert driver["STATE_FILE"] == profile.paths.state_file
    assert driver.get("READY_MARKER", "") == profile.paths.ready_marker
    template = only(objects, "DaemonSet", f"{overlay}-driver")["spec"]["template"]
    assert digests(template) == {"k8s-driver-manager": "sample-2.0.1", "driver": "sample-2.0.1"}
    annotated = json.dumps(template).count("sample-2.0.1")
    assert annotated == 1, "the digest is written in one place"


def writable(spec: Json, container: Json) -> list[str]:
    """Folders of the host that the container can write below the same path."""
    paths = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    mounts = [one for one in container["volumeMounts"] if not one.get("readOnly") and one["name"] in paths]
    assert all(paths[one["name"]] == one["mountPath"] for one in mounts)
    return [one["mountPath"] for one in mounts]


def written(profile: Profile, container: str) -> set[str]:
    """What of the host a container writes."""
    paths = profile.paths
    kept = {paths.evidence, paths.client_record, paths.client_lock}
    common = {"k8s-driver-manager": {paths.work_lock, paths.state_file, paths.load_record, *paths.artifacts, *kept}}
    common["health-watch"] = {paths.work_lock, paths.health_record, paths.ready_marker, *kept}
    common["rebooter"] = {paths.work_lock, paths.rebooter_record, paths.reboot_evidence}
    return {path for path in (*common[container], paths.reboot_marker) if path}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_container_can_write_what_it_writes_and_sees_the_rest_read_only(overlay: str) -> None:
    objects, profile = render(overlay), PROFILES[overlay]
    for daemon_set in (one for one in objects if one["kind"] == "DaemonSet"):
        spec = daemon_set["spec"]["template"]["spec"]
        for container in (*spec.get("initContainers", []), *spec["containers"]):
            if container["name"] == "driver":
                continue
            folders = writable(spec, container)
            for path in written(profile, container["name"]):
                assert any(path.startswith(f"{folder}/") for folder in folders), f"{container['name']}: {path}"
            (host,) = [one for one in container["volumeMounts"] if one["mountPath"] == "/host"]
            assert (host["readOnly"], host["mountPropagation"]) == (True, "HostToContainer")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_watch_opens_the_hosts_device_nodes_and_not_those_of_its_own_start(overlay: str) -> None:
    spec = only(render(overlay), "DaemonSet", f"{overlay}-driver")["spec"]["template"]["spec"]
    (watch,) = [one for one in spec["containers"] if one["name"] == "health-watch"]
    # The driver container loads while the watch runs, so its nodes are younger than the watch.
    assert "/dev" in writable(spec, watch)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_who_talks_to_the_api_server_has_a_token(overlay: str) -> None:
    objects = render(overlay)
    holders = []
    for account in (one for one in objects if one["kind"] == "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    for daemon_set in (one for one in objects if one["kind"] == "DaemonSet"):
        spec = daemon_set["spec"]["template"]["spec"]
        for container in (*spec.get("initContainers", []), *spec["containers"]):
            tokens = {one["name"] for one in spec["volumes"] if "projected" in one}
            holders += [
                (container["name"], one["name"]) for one in container.get("volumeMounts", []) if one["name"] in tokens
            ]
    # Each its own: one that is read by a container that runs the vendor's tool is not the one that a run works with.
    assert sorted(holders) == sorted(
        [
            ("health-watch", "watch-access"),
            ("k8s-driver-manager", "api-access"),
            *([("rebooter", "api-access")] if PROFILES[overlay].strategy is Strategy.REBOOT else []),
        ]
    )


@pytest.mark.parametrize(("overlay", "further"), SETS, ids=lambda part: "+".join(part) if part else "")
def test_readiness_is_asked_by_the_port_where_there_is_one_and_else_by_the_file(
    overlay: str, further: tuple[str, ...]
) -> None:
    objects = render(overlay, *further)
    watch = containers(objects, "driver")["health-watch"]
    path = env(watch)[settings.HEALTH_WATCH_READY_FILE.env]
    probe = watch["readinessProbe"]
    if "metrics" in further:
        assert (probe["httpGet"], probe.get("exec")) == ({"path": "/readyz", "port": "metrics"}, None)
    else:
        assert (probe["exec"]["command"], probe.get("httpGet")) == (["test", "-e", path], None)
    assert probe["failureThreshold"] == 1
    (mount,) = [one for one in watch["volumeMounts"] if path.startswith(one["mountPath"] + "/")]
    spec = only(objects, "DaemonSet", f"{overlay}-driver")["spec"]["template"]["spec"]
    (volume,) = [one for one in spec["volumes"] if one["name"] == mount["name"]]
    assert "emptyDir" in volume, "it outlives the container, and not the pod"


def ours(overlay: str, further: tuple[str, ...]) -> list[Json]:
    """Every container that runs this program."""
    specs = [
        one["spec"]["template"]["spec"]
        for one in render(overlay, *further)
        if one["kind"] in ("DaemonSet", "Deployment")
    ]
    found = [one for spec in specs for one in (*spec.get("initContainers", []), *spec["containers"])]
    return [one for one in found if one["name"] != "driver"]


@pytest.mark.submission
def test_every_variable_of_ours_is_a_declared_option() -> None:
    named = {
        (overlay, container["name"]): {one["name"] for one in container["env"]}
        for overlay, further in SETS + FLEETS
        for container in ours(overlay, further)
    }
    assert {where: names - KNOWN for where, names in named.items() if names - KNOWN} == {}


def is_understood(container: Json) -> bool:
    """True if the container's command line is one of ours, and its ports are those of its addresses."""
    words: list[str] = [*container["command"], *container.get("args", [])]
    assert words.pop(0) == "driver-manager"
    command: click.Command | None = cli
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
    assert command is not None, container["args"]
    told = command.make_context(str(command.name), words).params
    address = told.get("metrics_addr") or env(container).get(settings.ROLLOUT_STATUS_ADDR.env)
    ports = [one["containerPort"] for one in container.get("ports", [])]
    return bool(ports == ([parse_address(address)[1]] if address else []))


@pytest.mark.submission
def test_every_command_line_of_ours_is_understood() -> None:
    found = [(overlay, one) for overlay, further in SETS + FLEETS for one in ours(overlay, further)]
    assert [(overlay, one["name"]) for overlay, one in found if not is_understood(one)] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_images_have_the_version_of_the_package(overlay: str) -> None:
    version = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["version"]
    images = {one["image"] for one in containers(render(overlay), "driver").values()}
    assert images == {f"driver-manager:{version}", f"driver-manager-sample-driver:{version}"}


@pytest.mark.submission
def test_no_right_is_given_twice_or_by_a_star() -> None:
    for overlay, further in SETS + FLEETS:
        rights = []
        for role in render(overlay, *further):
            for rule in role.get("rules", []):
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        rights += [(role["metadata"], group, resource, verb) for verb in rule["verbs"]]
        assert rights
        assert not [right for right in rights if "*" in "".join(right[1:])]
        # The rebooter's own account may hold what the agent's holds too.
        given = [("rebooter" in role["name"], role.get("namespace", ""), *rest) for role, *rest in rights]
        assert len(given) == len(set(given))
        wide = {(account, *rest) for account, namespace, *rest in given if not namespace}
        assert not [right for right in given if right[1] and (right[0], *right[2:]) in wide]


@pytest.mark.parametrize("strategy", Strategy)
def test_all_drivers_that_are_changed_the_same_way_get_the_same_rights(strategy: Strategy) -> None:
    # So what the cluster tier proves of one holds for the others.
    first, *others = (overlay for overlay in OVERLAYS if PROFILES[overlay].strategy is strategy)
    assert others
    assert [rules(one) for one in others] == [rules(first)] * len(others)


def test_every_controller_of_rollouts_gets_the_same_rights() -> None:
    assert [rules(one) for one in ROLLOUTS] == [rules(ROLLOUTS[0])] * len(ROLLOUTS)


def rules(overlay: str) -> list[tuple[str, str]]:
    """Every role by its name without the overlay's prefix, with what it allows."""
    roles = [one for one in render(overlay) if "rules" in one]
    return sorted((one["metadata"]["name"].partition("-")[2], str(one["rules"])) for one in roles)


def test_the_lease_that_a_rule_names_is_the_one_that_is_used() -> None:
    (rule,) = [
        one for one in only(render("ascend"), "Role", "ascend-driver-rebooter")["rules"] if "resourceNames" in one
    ]
    assert rule["resourceNames"] == [LEASE]


def test_only_a_driver_that_leaves_a_running_kernel_gets_rights_over_pods() -> None:
    for overlay in OVERLAYS:
        names = {one["metadata"]["name"] for one in render(overlay) if one["kind"] == "ClusterRole"}
        swaps = PROFILES[overlay].strategy is Strategy.IN_PLACE
        assert (f"{overlay}-driver-in-place" in names, f"{overlay}-driver-eviction" in names) == (swaps, swaps)


def test_every_mount_and_every_verb_has_its_reason() -> None:
    sources = [path for path in DEPLOY.rglob("*.yaml") if "charts" not in path.relative_to(DEPLOY).parts]
    assert len(sources) > 50
    for path in sources:
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if path.name == "rbac.yaml" and re.fullmatch(r" {6}- \w+( .*)?", line):
                assert re.search(r"  # \S", line), f"{path.name}: {line}"
            if line.strip() == "volumeMounts:":
                assert lines[number + 1].strip().startswith("#"), f"{path}: {number}"


DOCS = DEPLOY.parent / "docs"


def documented(title: str) -> str:
    """The one block of docs/install.md that begins with the comment `title`."""
    (text,) = re.findall(rf"```yaml\n# {title}\n(.*?)```", (DOCS / "install.md").read_text(), re.DOTALL)
    return str(text)


def rendered(kustomization: str, folder: Path) -> list[Json]:
    """What kubectl makes of this kustomization in the folder `mine` beside deploy/."""
    tool = kubectl()
    shutil.copytree(DEPLOY, folder / "deploy")
    (folder / "mine").mkdir()
    (folder / "mine/kustomization.yaml").write_text(kustomization)
    done = subprocess.run([tool, "kustomize", str(folder / "mine")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.submission
@pytest.mark.parametrize("components", [("metrics",), ("safe-load",), ("metrics", "safe-load")], ids="+".join)
def test_what_a_component_brings_to_an_overlay_of_ones_own_is_in_its_namespace(
    components: tuple[str, ...], tmp_path: Path
) -> None:
    continued = documented("mine/kustomization.yaml, continued")
    entry = "  - ../deploy/components/metrics\n"
    assert entry in continued
    added = continued.replace(entry, "".join(f"  - ../deploy/components/{name}\n" for name in components))
    objects = rendered(documented("mine/kustomization.yaml") + added, tmp_path)
    spaces = {one["kind"]: one["metadata"].get("namespace", "") for one in objects}
    wide = ("Namespace", "ClusterRole", "ClusterRoleBinding")
    assert {kind: space for kind, space in spaces.items() if kind not in (*wide, "Role", "RoleBinding")} == {
        "ServiceAccount": "rbln-system",
        "DaemonSet": "rbln-system",
        **({"PodMonitor": "rbln-system", "PrometheusRule": "rbln-system"} if "metrics" in components else {}),
    }
    assert (spaces["Role"], spaces["RoleBinding"]) == ("default", "default"), "events about Nodes stay there"
    subjects = [subject for one in objects for subject in one.get("subjects", [])]
    assert {(subject["name"], subject["namespace"]) for subject in subjects} == {("rebellions-driver", "rbln-system")}


@pytest.mark.submission
def test_the_overlay_of_ones_own_in_the_documentation_renders(tmp_path: Path) -> None:
    objects = rendered(documented("mine/kustomization.yaml"), tmp_path)
    by_name = containers(objects, "driver")
    assert "sample-driver" not in json.dumps(by_name["driver"]), "no command of the sample is left"
    images = [by_name[name]["image"] for name in ("k8s-driver-manager", "driver")]
    assert images[0].startswith("registry.example.com/driver-manager:")
    assert images[1] == "registry.example.com/my-driver:2.0.1"
    template = only(objects, "DaemonSet", "rebellions-driver")["spec"]["template"]
    assert digests(template) == {"k8s-driver-manager": "my-driver-2.0.1", "driver": "my-driver-2.0.1"}


def test_the_documentation_names_every_overlay_and_component_and_nothing_that_is_not_there() -> None:
    text = "".join((DOCS / name).read_text() for name in ("install.md", "migrating.md"))
    named = {path.rstrip("/.") for path in re.findall(r"`((?:deploy|tests)/[\w./-]+)`", text)}
    assert [path for path in named if not (DEPLOY.parent / path).exists()] == []
    offered = {f"deploy/components/{name}" for name in COMPONENTS} | {f"deploy/overlays/{name}" for name in OVERLAYS}
    assert offered <= named
    prefixes = "ENABLE|DRAIN|NPU|DRIVER|POD|AUTO|REBOOT|SAFE|PROC"
    variables = set(re.findall(rf"`((?:{prefixes})_[A-Z_]+)`", text))
    others = {"DRIVER_VERSION"}  # NVIDIA's and the driver container's
    assert sorted(variables - KNOWN - others) == []
