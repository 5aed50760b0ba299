"""Each overlay of deploy/ on the real API server: valid to the last field, and its pods' containers do their work.

The DaemonSet controller makes the pods; a container is a process with exactly the pod's command, environment, mounts,
host name and a token of its service account, whose rights are those that the overlay ships.
"""

from __future__ import annotations

import copy
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from driver_manager.domain.fleet.spec import GROUP
from driver_manager.domain.profile import Strategy
from driver_manager.profiles import builtin
from scripts.releasing import kustomize
from scripts.releasing.chart import CHART, offered
from scripts.releasing.kustomize import OVERLAYS, only, render, render_with_namespace
from tests.support.control_plane.api import Api, Json, refusal, wait_until
from tests.support.control_plane.kubelet import NodeFactory, create_operands
from tests.support.control_plane.pod_process import MANAGER, OLD, DriverNode, PodRunner, old_driver, settled, wait_pod
from tests.support.control_plane.processes import RUN_TIMEOUT_S
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.servers import ControlPlane
from tests.support.control_plane.workloads import Shape, WorkloadsFactory
from tests.support.deploy.apply import Right, applied, apply, may, path_of, rights_of, rules_of
from tests.support.deploy.helm import Helm, HelmError, started
from tests.support.deploy.meaning import canonical, selectors
from tests.support.deploy.rights import BOUND_KINDS

NVIDIA = "gpu-operator"
VALUES: Json = {"vendor": "nvidia", "networkPolicy": {"enabled": True}, "resourceQuota": {"enabled": True}}


@pytest.fixture(scope="module")
def helm() -> Iterator[Helm]:
    """Helm's own code."""
    with started() as running:
        yield running


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    """The chart for a server that is older than the chart asks for."""
    shutil.copytree(CHART, tmp_path / "driver-manager")
    file = tmp_path / "driver-manager/Chart.yaml"
    text = file.read_text()
    assert "kubeVersion: '>=1.22.0-0'\n" in text
    file.write_text(text.replace("kubeVersion: '>=1.22.0-0'\n", ""))
    return tmp_path / "driver-manager"


def spec_of(kept: Json, wanted: Json) -> Json:
    def shared(have: object, want: object) -> object:
        if isinstance(have, dict) and isinstance(want, dict):
            return {key: shared(have.get(key), inner) for key, inner in want.items()}
        if isinstance(have, list) and isinstance(want, list) and len(have) == len(want):
            return [shared(*pair) for pair in zip(have, want, strict=True)]
        return have

    return {key: shared(canonical(kept.get(key)), canonical(inner)) for key, inner in wanted.items()}


@pytest.mark.shares(6)
def test_it_is_installed_upgraded_and_uninstalled_and_the_namespace_stays(
    helm: Helm, chart: Path, control_plane: ControlPlane, admin_api: Api
) -> None:
    kubeconfig = control_plane.kubeconfig(control_plane.admin.token)
    apply(admin_api, only(render("nvidia/namespace"), "Namespace"))
    with pytest.raises(HelmError, match=r"chart requires kubeVersion: >=1\.22\.0-0"):
        helm.act("install", VALUES, CHART, kubeconfig, NVIDIA)

    helm.act("install", VALUES, chart, kubeconfig, NVIDIA)
    wanted = render("nvidia", "network-policy", "resource-quota")
    for one in wanted:
        kept = admin_api.get(path_of(one))
        assert spec_of(kept, one) == canonical(one), one["metadata"]["name"]
        assert kept["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    before = {path_of(one): admin_api.get(path_of(one))["metadata"] for one in wanted}

    new = {**VALUES, "driver": {"configDigest": "sample-2.0.2"}}
    helm.act("upgrade", new, chart, kubeconfig, NVIDIA)
    after = {path: admin_api.get(path)["metadata"] for path in before}
    changed = [path for path, one in after.items() if one.get("generation") != before[path].get("generation")]
    daemon_set = only(wanted, "DaemonSet")
    assert changed == [path_of(daemon_set)], "only the pod template has changed"
    template = admin_api.get(path_of(daemon_set))["spec"]["template"]
    assert template["metadata"]["annotations"][f"{GROUP}/driver-config-digest"] == "sample-2.0.2"

    helm.act("uninstall", {}, chart, kubeconfig, NVIDIA)
    assert not [path for path in before if admin_api.answers(path)]
    assert admin_api.get(f"/api/v1/namespaces/{NVIDIA}")["status"]["phase"] == "Active"
    assert admin_api.answers(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition()}")


OFF_DEVICES = {"matchExpressions": [{"key": "openfuyao.com/npu.present", "operator": "DoesNotExist"}]}
POD: Json = {
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [OFF_DEVICES]}}
    },
    "nodeSelector": {"pool": "a"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "priorityClassName": "mine",
    "podAnnotations": {"example.com/a": "b"},
    "podLabels": {"team": "a"},
    "serviceAccount": {"annotations": {"example.com/role": "r"}},
    "env": {"TZ": {"valueFrom": {"configMapKeyRef": {"name": "zone", "key": "name"}}}},
}


def test_the_api_server_takes_every_value_of_the_charts_pods(helm: Helm, admin_api: Api) -> None:
    env = {"env": POD["env"]}
    values: Json = {key: value for key, value in POD.items() if key != "env"}
    values |= {"vendor": "ascend", "fullnameOverride": "a-ascend-driver", "driver": env, "manager": env}
    values |= {"healthWatch": env, "rebooter": POD, "rollout": {"enabled": True, **POD}}
    apply(admin_api, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "valued"}})
    kinds = ("DaemonSet", "Deployment", "ServiceAccount")
    objects = [one for one in helm.render(values, "valued") if one["kind"] in kinds]
    with applied(admin_api, objects):
        for one in objects:
            assert spec_of(admin_api.get(path_of(one)), one) == canonical(one)
    assert len(objects) == 6


CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
AROUND = ("openshift", "openshift-rebooter", "resource-quota", "network-policy")


def definition() -> str:
    """The name of the definition that Helm installs and never removes."""
    return str(only(render("nvidia/rollout"), "CustomResourceDefinition")["metadata"]["name"])


TEXT, FLAG, NULL = {"type": "string"}, {"type": "boolean"}, {"nullable": True}
LABELS = {"type": "object", "additionalProperties": TEXT}


def every(item: Json, **more: Any) -> Json:
    return {"type": "array", "items": item, **more}


def fields(*required: str, **properties: Json) -> Json:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def choice(*names: str) -> Json:
    return fields(type={**TEXT, "enum": [*names, "RunAsAny", "MustRunAs"]})


def constraints() -> Json:
    """OpenShift's definition (github.com/openshift/api, security/v1: its CRD, strategies and volumes by types.go)."""
    host = {f"allowHost{name}": FLAG for name in ("DirVolumePlugin", "IPC", "Network", "PID", "Ports")}
    lists = dict.fromkeys(
        ("allowedCapabilities", "defaultAddCapabilities", "requiredDropCapabilities"), every(TEXT, **NULL)
    )
    volumes = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "hostPath",
        "projected",
        "secret",
        "none",
        "*",
    ]
    required = {
        **host,
        **lists,
        "allowPrivilegedContainer": FLAG,
        "readOnlyRootFilesystem": FLAG,
        "priority": {"type": "integer", **NULL},
        "volumes": every({**TEXT, "enum": volumes}),
    }
    return fields(
        *required,
        **required,
        allowPrivilegeEscalation={**FLAG, **NULL},
        runAsUser=choice("MustRunAsRange", "MustRunAsNonRoot"),
        **dict.fromkeys(("seLinuxContext", "fsGroup", "supplementalGroups"), choice()),
        users=every(TEXT, **NULL),
        groups=every(TEXT, **NULL),
    )


def monitors() -> Json:
    """The Prometheus operator's definition, the part that deploy/ uses (prometheus-operator, Documentation/api.md)."""
    interval = {**TEXT, "pattern": "^(0|([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?)$"}
    relabelings = every(fields(sourceLabels=every(TEXT), targetLabel=TEXT, replacement=TEXT))
    endpoints = every(fields(port=TEXT, path=TEXT, interval=interval, relabelings=relabelings))
    return fields("spec", spec=fields("selector", selector=fields(matchLabels=LABELS), podMetricsEndpoints=endpoints))


def rules() -> Json:
    """As `monitors`."""
    rule = fields("expr", alert=TEXT, expr=TEXT, labels=LABELS, annotations=LABELS, **{"for": TEXT})
    return fields("spec", spec=fields(groups=every(fields("name", name=TEXT, rules=every(rule)))))


DEFINITIONS = (
    ("security.openshift.io", "SecurityContextConstraints", "securitycontextconstraints", "Cluster", constraints()),
    ("monitoring.coreos.com", "PodMonitor", "podmonitors", "Namespaced", monitors()),
    ("monitoring.coreos.com", "PrometheusRule", "prometheusrules", "Namespaced", rules()),
)


@pytest.fixture(scope="module")
def served(admin_api: Api) -> None:
    """The API server knows the kinds of other projects that deploy/ has."""
    for group, kind, plural, scope, schema in DEFINITIONS:
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
        spec = {"group": group, "scope": scope, "names": names, "versions": [version]}
        body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        admin_api.post(CRDS, {**body, "metadata": {"name": f"{plural}.{group}"}, "spec": spec})
        path = f"/apis/{group}/v1/{plural}"
        wait_until(lambda path=path: admin_api.answers(path), f"{kind} is served")  # type: ignore[misc]


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("overlay", "components", "kinds"),
    [
        ("ascend", AROUND, {"SecurityContextConstraints", "ResourceQuota", "NetworkPolicy", "DaemonSet"}),
        ("rebellions", ("metrics", "rollout"), {"PodMonitor", "PrometheusRule"}),
    ],
)
def test_the_api_server_knows_every_field_and_a_wrong_one_is_refused(
    admin_api: Api, overlay: str, components: tuple[str, ...], kinds: set[str]
) -> None:
    rendered = render_with_namespace(overlay, *components)
    objects = [one for one in rendered if one["kind"] in (*kinds, "Namespace")]
    with applied(admin_api, objects):
        found = [one for one in objects if one["kind"] in kinds]
        assert {one["kind"] for one in found} == kinds
        for one in found:
            broken = copy.deepcopy(one)
            broken.get("spec", broken)["alowed"] = True
            assert "alowed" in str(refusal(lambda broken=broken: apply(admin_api, broken)))  # type: ignore[misc]


@pytest.mark.shares(6)
@pytest.mark.usefixtures("served")
def test_an_account_may_use_its_own_constraints_in_its_namespace_only(admin_api: Api) -> None:
    # OpenShift admits a pod by what its account may use: verb `use`, asked in the pod's namespace.
    accounts, found = ("ascend-driver", "ascend-driver-rebooter"), set()
    with applied(admin_api, render_with_namespace("ascend", *AROUND)):
        for account, name, namespace in itertools.product(
            accounts, (*accounts, "privileged"), ("npu-operator", "default")
        ):
            attributes = {"verb": "use", "group": DEFINITIONS[0][0], "resource": DEFINITIONS[0][2], "name": name}
            who = f"system:serviceaccount:npu-operator:{account}"
            review = {"spec": {"user": who, "resourceAttributes": {**attributes, "namespace": namespace}}}
            answer = admin_api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
            if answer["status"]["allowed"]:
                found.add((account, name, namespace))
    assert found == {(account, account, "npu-operator") for account in accounts}


VENDORS = ("rebellions", "nvidia", "ascend")
AMID = ("metrics", "network-policy", "resource-quota", "openshift")
NOT_SERVED = ("PodDisruptionBudget", "system:openshift:scc:nonroot-v2")
"""The kind and the role that this server lacks; tests/checks/test_kubectl_renders.py has their names and selectors."""


def by_kustomize(vendor: str, namespace: str, folder: Path) -> list[Json]:
    """The overlay, copied with another namespace as docs/install.md says."""
    shutil.copytree(kustomize.DEPLOY, folder / "deploy", dirs_exist_ok=True)
    for file in (folder / f"deploy/overlays/{vendor}").rglob("default-namespace.yaml"):
        file.write_text(file.read_text().replace(builtin()[vendor].namespace, namespace))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kustomize, "DEPLOY", folder / "deploy")
        return [*render(vendor, *AMID, *recovery_of(vendor)), *render(f"{vendor}/rollout", "openshift-rollout")]


def recovery_of(vendor: str) -> list[str]:
    return ["recovery"] if "recovery" in offered()[vendor] else []


def chosen(one: Json) -> Iterator[str]:
    """The object's selectors of pods, as the API server takes them in a list."""
    for selector in selectors(one):
        labels = [f"{key}={value}" for key, value in selector.get("matchLabels", {}).items()]
        among = [f"{each['key']} in ({','.join(each['values'])})" for each in selector.get("matchExpressions", [])]
        yield ",".join(labels + among)


@pytest.mark.shares(6)
@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("tool", ["kustomize", "helm"])
@pytest.mark.parametrize("spaces", [("one",) * 3, VENDORS], ids=["one-namespace", "several"])
def test_vendors_in_one_cluster_share_no_object_no_pod_and_no_right(
    helm: Helm, admin_api: Api, node: NodeFactory, tmp_path: Path, tool: str, spaces: tuple[str, ...]
) -> None:
    switches = {"networkPolicy": ON, "resourceQuota": ON, "openshift": ON, "metrics": ON, "rollout": ON}
    made: dict[str, list[Json]] = {}
    for vendor, space in zip(VENDORS, (f"{tool}-{space}" for space in spaces), strict=True):
        apply(admin_api, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
        by_helm = {"vendor": vendor, **switches, **dict.fromkeys(recovery_of(vendor), ON)}
        found = by_kustomize(vendor, space, tmp_path) if tool == "kustomize" else helm.render(by_helm, space)
        made[vendor] = [one for one in found if not {one["kind"], one.get("roleRef", {}).get("name")} & {*NOT_SERVED}]
    every = [one for objects in made.values() for one in objects]
    by_path = {path_of(one): one for one in every}
    shared = [one for one in every if len([other for other in every if path_of(other) == path_of(one)]) > 1]
    assert [one["kind"] for one in shared] == ["CustomResourceDefinition"] * 3
    assert shared == [shared[0]] * 3

    with applied(admin_api, by_path.values()):
        one_node = node()
        for one in every:
            if one["kind"] == "DaemonSet":
                one_node.set_labels(one["spec"]["template"]["spec"]["nodeSelector"])
                wait_pod(admin_api, one_node.name, one["metadata"]["name"])
            if one["kind"] == "Deployment":
                template = copy.deepcopy(one["spec"]["template"])
                meta = {**template["metadata"], "name": f"{one['metadata']['name']}-0"}
                pod = {"metadata": meta, "spec": {**template["spec"], "nodeName": one_node.name}}
                admin_api.post(f"/api/v1/namespaces/{one['metadata']['namespace']}/pods", pod)
        for vendor, objects in made.items():
            for selector in (text for one in objects for text in chosen(one)):
                pods = [pod["metadata"]["name"] for pod in admin_api.list("/api/v1/pods", labelSelector=selector)]
                assert pods, selector
                assert [name for name in pods if not name.startswith(f"{vendor}-")] == []
            for account in (one for one in objects if one["kind"] == "ServiceAccount"):
                own = rights_of(objects, account)
                assert rights_of(every, account) == own
                others = {right for one in every if one["kind"] == "Role" for right in named_rights(one)} - {*own}
                assert [right for right in others if may(admin_api, account, right)] == []


ON = {"enabled": True}


def named_rights(role: Json) -> Iterator[Right]:
    """The rights of a Role over objects by name."""
    for group, resource, name, verb in rules_of(role):
        if name:
            yield role["metadata"]["namespace"], group, resource, name, verb


VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
RECOVERY, REBOOTS = (("coordination.k8s.io", "leases", f"driver-manager-{name}") for name in ("recovery", "reboots"))
CLAIMS = ("resource.k8s.io", "resourceclaims", "")
OBJECTS = (
    *(("", name, "") for name in ("nodes", "nodes/status", "pods", "pods/eviction", "pods/exec", "events", "secrets")),
    *(("apps", "daemonsets", ""), RECOVERY, REBOOTS, CLAIMS),
)
ANYWHERE = {("get", *OBJECTS[0]), ("patch", *OBJECTS[0]), ("list", "", "pods", ""), ("list", *CLAIMS)}
WAITS = {("watch", "", "pods", "")}
"""The right of components/in-place."""

SLOTS = {("get", *RECOVERY), ("patch", *RECOVERY), ("create", *RECOVERY), ("create", *REBOOTS)}
"""What is created cannot be named in a rule."""

ALLOWED = {
    "recovering": ANYWHERE | WAITS | SLOTS | {("create", "", "pods/eviction", "")},
    "default": ANYWHERE | WAITS | {("create", "", "events", "")},
    "tenant": ANYWHERE | WAITS,
}
"""Verb, group, resource and name by namespace: the rights to recover a node, without components/eviction."""


@pytest.mark.parametrize("tool", ["kustomize", "helm"])
def test_an_account_that_recovers_its_node_has_exactly_the_rights_that_it_needs(
    helm: Helm, admin_api: Api, tmp_path: Path, tool: str
) -> None:
    apply(admin_api, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "recovering"}})
    values: Json = {"vendor": "rebellions", "recovery": ON, "eviction": {"enabled": False}}
    made = (
        by_kustomize("rebellions", "recovering", tmp_path) if tool == "kustomize" else helm.render(values, "recovering")
    )
    account = only(made, "ServiceAccount", "rebellions-driver")
    bound = [one for one in made if one["kind"] in BOUND_KINDS and "eviction" not in one["metadata"]["name"]]
    with applied(admin_api, [one for one in bound if "rollout" not in one["metadata"]["name"]]):
        rights = list(itertools.product(VERBS, OBJECTS))
        for namespace, allowed in ALLOWED.items():
            found = {(verb, *what) for verb, what in rights if may(admin_api, account, (namespace, *what, verb))}
            assert found == allowed, namespace


NEW = "2.0.1"
NPU = "npu.openfuyao.com/"


@pytest.fixture
def settle(
    control_plane: ControlPlane, containers: None, admin_api: Api, tmp_path: Path, node: NodeFactory, proxy: Proxy
) -> Iterator[Callable[[str], DriverNode]]:
    with ExitStack() as stack:

        def build(overlay: str) -> DriverNode:
            objects = stack.enter_context(applied(admin_api, render_with_namespace(overlay)))
            daemon_set = only(objects, "DaemonSet", f"{overlay}-driver")
            tree = old_driver(tmp_path, builtin()[overlay], "sample-1.2.92")
            runner = PodRunner(control_plane, admin_api, tree, tmp_path, proxy.url)
            return settled(node(boot_id=tree.boot_id), daemon_set, tree, runner)

        yield build


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_api_server_knows_every_field_and_takes_every_value(admin_api: Api, overlay: str) -> None:
    reboots = builtin()[overlay].strategy is Strategy.REBOOT
    objects = render_with_namespace(overlay, "clients", "rebooter-eviction" if reboots else "safe-load")
    with applied(admin_api, objects):
        for one in objects:
            again = apply(admin_api, one)
            assert (again["kind"], again["metadata"]["name"]) == (one["kind"], one["metadata"]["name"])


@pytest.mark.parametrize(
    ("overlay", "resource", "components"),
    [
        ("rebellions", "rebellions.ai/ATOM", ("device-plugin", "operator-validator")),
        ("nvidia", "nvidia.com/gpu", ("device-plugin", "dcgm-exporter")),
    ],
)
def test_the_init_container_clears_the_way_for_the_driver_container_and_gives_the_node_back(
    settle: Callable[[str], DriverNode],
    workloads: WorkloadsFactory,
    admin_api: Api,
    overlay: str,
    resource: str,
    components: tuple[str, ...],
) -> None:
    driver_node = settle(overlay)
    tree, node = driver_node.tree, driver_node.node
    prefix = tree.profile.deploy.prefix
    with ExitStack() as stack:
        operands = create_operands(stack, admin_api, node, components, deploy_prefix=prefix)
        (tenant,) = workloads(node).managed(1, Shape(resource=resource))
        ended = driver_node.clear("the driver was unloaded")
        assert '"warning"' not in ended.err
        assert (tree.driver_version, tree.digest, tenant.state()) == ("not loaded", "", "gone")
        assert not driver_node.is_mounted()
        assert node.shown() == ("ready", 0)
        operands.wait_running()

    driver_node.serve(NEW, "sample-2.0.1")
    watched(driver_node, driver_node.pod)
    assert tree.driver_version == NEW


def watched(driver_node: DriverNode, pod: Json) -> None:
    """The pod's health-watch takes its first sample, and ends with 0 on a signal."""
    watch = driver_node.runner.start(pod, "health-watch")
    record = driver_node.tree.root / driver_node.tree.profile.paths.health_record.lstrip("/")
    wait_until(record.exists, "health-watch remembers a sample", RUN_TIMEOUT_S)
    ended = watch.terminate()
    assert ended.code == 0, ended.err
    assert f"watching the {driver_node.tree.profile.name} driver every 60 s" in ended.err
    assert '"error"' not in ended.err
    assert "wedges are not reported on the Node" not in ended.err, "it has the token of the overlay"
    warned = [line for line in ended.err.splitlines() if '"warning"' in line and "suspect(1)" not in line]
    assert not warned, "it reaches its Node with that token; the stand-in of a vendor's tool may be none"


@pytest.mark.shares(6)
def test_a_driver_that_must_not_be_unloaded_is_replaced_by_an_approved_reboot(
    settle: Callable[[str], DriverNode],
) -> None:
    driver_node = settle("ascend")
    tree, node = driver_node.tree, driver_node.node
    labels, pod, rebooters = node.labels(), driver_node.pod, wait_pod(node.api, node.name, "ascend-driver-rebooter")
    (tree.root / "var/lib/ascend").mkdir()
    watched(driver_node, pod)
    idle = driver_node.runner.start(rebooters, "rebooter")
    wait_until(
        (tree.root / "var/lib/ascend/.rebooter.json").exists, "the rebooter has looked at its Node", RUN_TIMEOUT_S
    )

    waiting = driver_node.runner.start(pod, MANAGER)
    wait_until(lambda: node.labels().get(f"{NPU}reboot-required") == "true", "a reboot is asked for", RUN_TIMEOUT_S)
    marker = json.loads((tree.root / "var/lib/ascend/.reboot-required").read_text())
    assert (marker["reason"], marker["to"], tree.driver_version) == ("upgrade", "sample-2.0.1", OLD)
    assert idle.terminate().code == 0
    rebooter = driver_node.runner.start(rebooters, "rebooter")
    node.api.patch(node.path, {"metadata": {"annotations": {f"{NPU}approve-reboot": "true"}}})
    wait_until(lambda: tree.is_reboot_requested, "the reboot command is given", RUN_TIMEOUT_S)
    assert f"{NPU}approve-reboot" not in node.annotations()
    lease = "/apis/coordination.k8s.io/v1/namespaces/npu-operator/leases/driver-manager-reboots"
    assert node.api.get(lease)["spec"]["holderIdentity"] == node.name
    driver_node.boot(waiting, rebooter)

    fresh = driver_node.runner.run(pod, MANAGER)
    assert fresh.code == 0, fresh.err
    driver_node.install(NEW, "sample-2.0.1")
    back = driver_node.runner.start(rebooters, "rebooter")
    wait_until(lambda: node.labels() == labels, "the label goes", RUN_TIMEOUT_S)
    wait_until(lambda: not node.api.get(lease)["spec"].get("holderIdentity"), "the slot is given back")
    wait_until(lambda: not [key for key in node.annotations() if key.startswith(NPU)], "the annotations go")
    wait_until(lambda: node.shown()[0] == "ready", "the driver's state is shown")
    ended = back.terminate()
    assert ended.code == 0, ended.err
    assert not (tree.root / "var/lib/ascend/.reboot-required").exists()
    reasons = {event["reason"] for event in node.api.list("/api/v1/namespaces/default/events")}
    assert {"RebootRequired", "RebootCompleted"} <= reasons


def test_the_watch_finds_a_device_node_that_is_younger_than_itself(settle: Callable[[str], DriverNode]) -> None:
    driver_node = settle("rebellions")
    pod = copy.deepcopy(driver_node.pod)
    (container,) = [one for one in pod["spec"]["containers"] if one["name"] == "health-watch"]
    script = "#!/bin/sh\necho waiting >&2\nuntil [ -e /dev/rbln-late ]; do /bin/sleep 0.05; done\n"
    (driver_node.tree.bin / "await").write_text(script)
    (driver_node.tree.bin / "await").chmod(0o755)
    container["command"] = ["await"]
    running = driver_node.runner.start(pod, "health-watch")
    wait_until(lambda: "waiting" in running.output(), "the container has started", RUN_TIMEOUT_S)
    (driver_node.tree.root / "dev/rbln-late").touch()
    assert running.end().code == 0


@pytest.mark.parametrize(
    ("mount", "code", "expected"),
    [
        ("/host", 2, "cannot read /sys/module"),
        ("/run/rbln", 6, "/run/rbln/rbln-driver.state cannot be written: Read-only file system"),
        ("/var/run/secrets/kubernetes.io/serviceaccount", 2, "cannot connect to the cluster"),
    ],
)
def test_the_init_container_needs_each_of_its_mounts(
    settle: Callable[[str], DriverNode], mount: str, code: int, expected: str
) -> None:
    driver_node = settle("rebellions")
    pod = copy.deepcopy(driver_node.pod)
    (container,) = pod["spec"]["initContainers"]
    container["volumeMounts"] = [one for one in container["volumeMounts"] if one["mountPath"] != mount]
    ended = driver_node.runner.run(pod, MANAGER)
    assert (ended.code, expected in ended.err) == (code, True), ended.err
    assert driver_node.tree.driver_version == OLD
