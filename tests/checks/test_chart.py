"""The Helm chart: made from deploy/, rendered by Helm to what the overlays are, and strict about its values."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from driver_manager.domain.fleet.spec import GROUP
from scripts.releasing import chart, conditions, kustomize, layers
from scripts.releasing.conditions import ALWAYS, When
from scripts.releasing.kustomize import DEPLOY, OVERLAYS, Json, only, render
from tests.support.deploy.helm import Helm, HelmError, started
from tests.support.deploy.meaning import meaning
from tests.support.deploy.renderings import shown

NAMESPACES = {one: only(render(f"{one}/namespace"), "Namespace")["metadata"]["name"] for one in OVERLAYS}
OFFERED = {
    vendor: {name: has for name, has in names.items() if not name.startswith(("rollout", "openshift-rollout"))}
    for vendor, names in chart.offered().items()
}

CHART_YAML = (chart.CHART / "Chart.yaml").read_text()
DIGEST, INSTANCE = f"{GROUP}/driver-config-digest", "app.kubernetes.io/instance"


DAEMON_SETS = ("ascend-driver", "ascend-driver-rebooter")


@pytest.fixture(scope="module")
def helm() -> Iterator[Helm]:
    with started() as running:
        yield running


def value_of(component: str) -> str:
    return re.sub(r"-(\w)", lambda found: found[1].upper(), component)


def switched(**components: bool) -> Json:
    return {value_of(name.replace("_", "-")): {"enabled": on} for name, on in components.items()}


def sets() -> Iterator[Any]:
    """Vendor, components beside the overlay's own, those of its own that are left out, whether with its rollout."""
    for vendor, names in OFFERED.items():
        own, more = ([name for name, has in names.items() if has is wanted] for wanted in (True, False))
        alone = [name for name in more if not conditions.REQUIRES.get(name) and name != "openshift"]
        yield from [(vendor, (), (), False), (vendor, tuple(more), (), True)]
        rest: list[Any] = [((), (), True), ((), tuple(own), False), *(((name,), (), False) for name in alone)]
        yield from (pytest.param(vendor, *one, marks=pytest.mark.submission) for one in rest)


HELM = {"instance": "driver-manager", "managed-by": "Helm", "version": yaml.safe_load(CHART_YAML)["version"]}


def unlabelled(one: Json) -> Json:
    """The object without the labels that only Helm's have. AssertionError if one of them is missing or different."""
    if one["kind"] == "CustomResourceDefinition":
        return one
    labels = {**one["metadata"]["labels"]}
    assert {name: labels.pop(f"app.kubernetes.io/{name}", "") for name in HELM} == HELM
    rest = {key: value for key, value in one["metadata"].items() if key != "labels"}
    return {**one, "metadata": {**rest, **({"labels": labels} if labels else {})}}


def overlay(vendor: str, more: tuple[str, ...], less: tuple[str, ...], fleet: bool, folder: Path) -> list[Json]:
    """What kustomize makes of the vendor's overlay with `more` and without `less`, and of its folders asked for."""
    shutil.copytree(DEPLOY, folder / "deploy")
    file = folder / f"deploy/overlays/{vendor}/kustomization.yaml"
    body = yaml.safe_load(file.read_text())
    kept = [one for one in body["components"] if one.rpartition("/")[2] not in less]
    body["components"] = [*kept, *(f"../../components/{name}" for name in more if name != "admission-policy")]
    # The vendor's words for its rebooter are of no use without one.
    body["patches"] = [one for one in body["patches"] if "rebooter" not in less or one["path"] != "rebooter.yaml"]
    body["patches"] += [{"path": "rebooter/daemonset.yaml"}] if "rebooter" in more else []
    file.write_text(yaml.safe_dump(body))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kustomize, "DEPLOY", folder / "deploy")
        rollout = render(f"{vendor}/rollout", *(["openshift-rollout"] if "openshift" in more else [])) if fleet else []
        policies = render(f"{vendor}/admission-policy") if "admission-policy" in more else []
        return [*render(vendor), *rollout, *policies]


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize(("vendor", "more", "less", "fleet"), list(sets()), ids=shown)
def test_the_chart_renders_what_the_overlays_are(
    helm: Helm, vendor: str, more: tuple[str, ...], less: tuple[str, ...], fleet: bool, tmp_path: Path
) -> None:
    wanted = meaning(overlay(vendor, more, less, fleet, tmp_path))
    switches = dict.fromkeys(more, True) | dict.fromkeys(less, False) | {"rollout": fleet}
    switches.pop("openshift-rebooter", None)  # by the two that it requires
    values = {"vendor": vendor, **switched(**switches)}
    found = meaning(map(unlabelled, helm.render(values, NAMESPACES[vendor])))
    if not fleet:
        # Helm installs definitions, whatever the values are.
        found = {key: one for key, one in found.items() if key[0] != "CustomResourceDefinition"}
    assert found == wanted


def test_a_difference_in_meaning_is_seen() -> None:
    def meant(**more: Any) -> Any:
        container = {"name": "driver", "volumeMounts": [{"name": "host", "mountPath": "/host", **more}], **more}
        return meaning([{"kind": "DaemonSet", "metadata": {"name": "a"}, "spec": {"containers": [container]}}])

    assert meant() != meant(readOnly=True) != meant(readOnly=False)
    assert meant() != meant(securityContext={"privileged": True})


def test_the_chart_in_the_repository_is_what_deploy_makes() -> None:
    assert chart.drifted(chart.templates()) == [], "run scripts/chart"


def test_a_change_in_deploy_shows_as_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    file = tmp_path / "deploy/components/in-place/rbac.yaml"
    file.write_text(file.read_text().replace("- watch ", "- list "))
    monkeypatch.setattr(chart, "DEPLOY", tmp_path / "deploy")
    files, changed = chart.templates(), ["templates/in-place.yaml"]
    assert chart.drifted(files) == changed
    less = {name: text for name, text in files.items() if "quota" not in name}
    assert chart.drifted(less) == [*changed, "templates/resource-quota.yaml"]


@pytest.mark.parametrize(
    ("vendor", "values", "expected"),
    [
        (None, {}, "at '/vendor': value must be one of 'amd', 'ascend', 'furiosa', 'gaudi', 'nvidia', 'rebellions', "),
        ("nvdia", {}, "at '/vendor': value must be one of"),
        ("nvidia", {"metricz": {"enabled": True}}, "'metricz' not allowed"),
        ("nvidia", {"fullnameOverride": "gpu"}, "fullnameOverride: let it end with nvidia-driver"),
        ("nvidia", {"podLabels": {INSTANCE: "x"}}, f"invalid propertyName '{INSTANCE}'"),
        ("nvidia", {"podAnnotations": {DIGEST: "x"}}, f"invalid propertyName '{DIGEST}'"),
        ("nvidia", {"rollout": {"affinity": {"nodeAfinity": {}}}}, "'nodeAfinity' not allowed"),
        ("nvidia", {"driver": {"env": {"A": {"value": "x"}}}}, "at '/driver/env/A': missing property 'valueFrom'"),
        ("nvidia", {"driver": {"env": {"A": {"valueFrom": {"secretRef": {"name": "s"}}}}}}, "'secretRef' not allowed"),
        ("nvidia", {"manager": {"resources": {"limit": {"cpu": "1"}}}}, "'limit' not allowed"),
        ("nvidia", {"tolerations": [{"operator": "Exist"}]}, "at '/tolerations/0/operator'"),
        ("nvidia", {"rebooter": {"tolerations": [{"keys": "a"}]}}, "'keys' not allowed"),
        ("nvidia", {"podLabels": {"a": "two words"}}, "at '/podLabels/a'"),
        ("nvidia", {"manager": {"env": {"LOG_LEVEL": True}}}, "at '/manager/env/LOG_LEVEL': got boolean"),
        ("nvidia", {"manager": {"env": {"ENABLE_NPU_POD_EVICTON": "true"}}}, "ENABLE_NPU_POD_EVICTON"),
        ("nvidia", {"healthWatch": {"env": {"EVICT_HOLDERS": "true"}}}, "EVICT_HOLDERS"),
        ("ascend", {"rebooter": {"env": {"AUTO_UPGRAD": "true"}}}, "AUTO_UPGRAD"),
        ("ascend", {"rollout": {"env": {"AUTO_UPGRADE": "true"}}}, "AUTO_UPGRADE"),
        ("nvidia", {"driver": {"env": {"A B": "x"}}}, "A B"),
        ("nvidia", {"image": {"tag": 1.5}}, "at '/image/tag': got number, want string"),
        ("nvidia", {"image": {"digest": "1234"}}, "at '/image/digest'"),
        ("nvidia", {"rollout": {"replicas": 0}}, "at '/rollout/replicas': minimum"),
        ("nvidia", {"eviction": {"enabled": "no"}}, "at '/eviction/enabled': got string"),
        ("ascend", switched(eviction=True), "eviction.enabled: vendor ascend has no eviction"),
        ("nvidia", switched(rebooter_eviction=True), "rebooterEviction.enabled needs rebooter"),
        ("ascend", switched(rebooter=False, rebooter_eviction=True), "rebooterEviction.enabled needs rebooter"),
        ("nvidia", {"clients": {"selector": "a=b"}}, "clients.selector needs clients.enabled"),
        ("nvidia", {"recovery": {"auto": ["reload"]}}, "recovery.auto needs recovery.enabled"),
        ("nvidia", {"recovery": {"enabled": True, "auto": ["restart"]}}, "at '/recovery/auto/0': value must be one of"),
        ("nvidia", {"recovery": {"enabled": True, "auto": "reset"}}, "at '/recovery/auto': got string, want array"),
        ("ascend", switched(recovery=True), "recovery.enabled: vendor ascend has no recovery"),
        ("nvidia", {"driver": {"image": {"repository": "r/d"}}}, "driver.image.tag: say which version"),
        ("nvidia", {"driver": {"image": {"repository": "r/d", "tag": "2"}}}, "driver.configDigest: one word that"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_and_named(helm: Helm, vendor: str | None, values: Json, expected: str) -> None:
    with pytest.raises(HelmError, match=re.escape(expected)):
        helm.render({**values, **({"vendor": vendor} if vendor else {})}, "x")


def test_values_reach_what_they_are_about(helm: Helm) -> None:
    digest = "sha256:" + "a" * 64
    mount = {"name": "profile", "mountPath": "/etc/profile"}
    volume, limits = {"name": "profile", "configMap": {"name": "profile"}}, {"limits": {"memory": "1Gi"}}
    own: Json = {"command": ["mine"], "args": ["all"], "ready": ["mine", "ready"], "stop": ["mine", "stop"]}
    own |= {"env": {"DRIVER_VERSION": "7", "OWN": "1"}, "configDigest": "seven"}
    values: Json = {"vendor": "ascend", "nodeSelector": {"pool": "npu"}, "imagePullSecrets": [{"name": "pull"}]}
    values |= {"image": {"repository": "r/m", "digest": digest, "pullPolicy": "Always"}, "volumes": [volume]}
    values |= {"driver": {"image": {"repository": "r/d", "tag": "7"}, **own}}
    values |= {"manager": {"env": {"DRIVER_PROFILE": "mine"}, "resources": limits, "volumeMounts": [mount]}}
    values |= {"rebooter": {"env": {"AUTO_UPGRADE": "true"}}, "clients": {"enabled": True, "selector": "role=exporter"}}
    values |= {"rollout": {"enabled": True, "replicas": 3, "volumeMounts": [mount], "volumes": [volume]}}
    values |= {"tolerations": [{"key": "npu", "operator": "Exists"}]}
    plain = meaning(helm.render({"vendor": "ascend", **switched(rollout=True, clients=True)}, "x"))
    found = meaning(helm.render(values, "x"))
    workloads = {("DaemonSet", "x", name) for name in DAEMON_SETS} | {("Deployment", "x", "ascend-driver-rollout")}
    assert {key for key in plain if plain[key] != found[key]} == workloads
    template = found["DaemonSet", "x", "ascend-driver"]["spec"]["template"]
    spec = template["spec"]
    by_name = {one["name"]: one for one in (*spec["initContainers"], *spec["containers"])}
    manager, driver = by_name["k8s-driver-manager"], by_name["driver"]
    assert [one["image"] for one in (manager, driver)] == [f"r/m@{digest}", "r/d:7"]
    assert (manager["imagePullPolicy"], driver["imagePullPolicy"]) == ("Always", "IfNotPresent")
    assert (driver["command"], driver["args"]) == (["mine"], ["all"])
    assert driver["startupProbe"]["exec"]["command"] == ["mine", "ready"]
    assert driver["lifecycle"]["preStop"]["exec"]["command"] == ["mine", "stop"]
    notes = template["metadata"]["annotations"]
    assert (notes[DIGEST], notes[f"{GROUP}/client-selector"]) == ("seven", "role=exporter")
    env = [(one["name"], one["value"]) for one in driver["env"] if "value" in one]
    assert {("DRIVER_VERSION", "7"), ("OWN", "1")} <= set(env)
    assert len(dict(env)) == len(env)
    assert ("DRIVER_PROFILE", "mine") in [(one["name"], one.get("value")) for one in manager["env"]]
    assert (mount in manager["volumeMounts"], manager["resources"]) == (True, limits)
    for name in DAEMON_SETS:
        pod = found["DaemonSet", "x", name]["spec"]["template"]["spec"]
        selector = {"openfuyao.com/npu.present": "true", "pool": "npu"}
        assert (pod["nodeSelector"], pod["tolerations"]) == (selector, values["tolerations"])
        assert volume in pod["volumes"]
        assert pod["imagePullSecrets"] == [{"name": "pull"}]
    controller = found["Deployment", "x", "ascend-driver-rollout"]["spec"]
    assert (controller["replicas"], volume in controller["template"]["spec"]["volumes"]) == (3, True)


PART_VALUES: tuple[tuple[str, Any, str], ...] = (
    ("nodeSelector", {"pool": "npu"}, "spec/nodeSelector"),
    ("tolerations", [{"key": "npu", "operator": "Exists"}], "spec/tolerations"),
    ("affinity", {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}, "spec/affinity"),
    ("priorityClassName", "mine", "spec/priorityClassName"),
    ("podAnnotations", {"example.com/scrape": "no"}, "metadata/annotations"),
    ("podLabels", {"team": "a"}, "metadata/labels"),
)
"""Values that the driver pods, the rebooter and the rollout controller have, and where they are in a pod template."""

ACCOUNT = {"annotations": {"example.com/role": "r"}}
SECRET = {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
ENV = (
    ("manager", "driver", "initContainers/k8s-driver-manager"),
    ("driver", "driver", "containers/driver"),
    ("healthWatch", "driver", "containers/health-watch"),
    ("rebooter", "driver-rebooter", "containers/rebooter"),
    ("rollout", "driver-rollout", "containers/controller"),
)
Place = tuple[str, str]
"""The name of an object without its vendor, and a path in it."""


def value_table() -> Iterator[Any]:
    """Values, and what they make of the objects, by place."""
    for key, value, path in PART_VALUES:
        for part, own in (("", "driver"), ("rebooter", "driver-rebooter"), ("rollout", "driver-rollout")):
            values = {part: {key: value}} if part else {key: value}
            pods = (own, "driver-rebooter") if not part else (own,)
            places = {(f"{pod}/spec", f"template/{path}"): value for pod in pods}
            yield pytest.param(values, places, id=f"{part}.{key}")
        both = {key: [] if isinstance(value, list) else type(value)()}
        yield pytest.param({"rebooter": both, "rollout": both}, {}, id=f"{key} empty")
    for part, own in chart.PARTS.items():
        values = {own: {"serviceAccount": ACCOUNT}} if own else {"serviceAccount": ACCOUNT}
        yield pytest.param(values, {(part, "metadata"): ACCOUNT}, id=f"{own}.serviceAccount")
    for part, pod, path in ENV:
        place = (f"{pod}/spec", f"template/spec/{path}/env/TZ")
        yield pytest.param({part: {"env": {"TZ": SECRET}}}, {place: {"name": "TZ", **SECRET}}, id=f"{part}.env")


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Each leaf of the value by its path; a list of named things counts as a mapping."""
    if isinstance(value, list) and value and all(isinstance(one, dict) and "name" in one for one in value):
        value = {one["name"]: one for one in value}
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}/{key}")
    else:
        yield path, value


def all_leaves(objects: list[Json]) -> dict[str, Any]:
    named = [(f"{one['kind']}/{one['metadata']['name'].removeprefix('ascend-')}", one) for one in objects]
    return dict(pair for name, one in named for key in one for pair in leaves(one[key], f"{name}/{key}"))


KINDS = {"driver/spec": "DaemonSet", "driver-rebooter/spec": "DaemonSet", "driver-rollout/spec": "Deployment"}


@pytest.mark.submission
@pytest.mark.parametrize(("values", "places"), list(value_table()))
def test_a_value_is_found_where_it_belongs_and_nowhere_else(helm: Helm, values: Json, places: dict[Place, Any]) -> None:
    on = {"vendor": "ascend", **switched(metrics=True, network_policy=True, openshift=True)}
    given = ({**on, **more, "rollout": {"enabled": True, **more.get("rollout", {})}} for more in ({}, values))
    plain, found = (all_leaves(helm.render(one, "x")) for one in given)
    at = {f"{KINDS.get(name, 'ServiceAccount')}/{name}/{path}": value for (name, path), value in places.items()}
    wanted = dict(pair for path, value in at.items() for pair in leaves(value, path))
    assert {path: value for path, value in found.items() if plain.get(path) != value} == wanted


def test_the_rebooters_own_values_come_before_those_of_all_driver_pods(helm: Helm) -> None:
    objects = helm.render({"vendor": "ascend", "podLabels": {"a": "1"}, "rebooter": {"podLabels": {"b": "2"}}}, "x")
    labels = [only(objects, "DaemonSet", name)["spec"]["template"]["metadata"]["labels"] for name in DAEMON_SETS]
    assert [(one.get("a"), one.get("b")) for one in labels] == [("1", None), (None, "2")]


def test_another_full_name_is_the_beginning_of_every_name_and_changes_nothing_else(helm: Helm) -> None:
    on = {"vendor": "nvidia", **switched(**dict.fromkeys(OFFERED["nvidia"], True), rollout=True)}
    on.pop("openshiftRebooter")
    name = "team-a-nvidia-driver"
    plain, found = (helm.render({**on, **more}, "x") for more in ({}, {"fullnameOverride": name}))
    renamed = re.sub(r'(?<![\w?)/-])(?<!component": ")nvidia-driver(?!\()', name, json.dumps(plain))
    assert meaning(json.loads(renamed)) == meaning(found)
    assert {one["metadata"]["name"].startswith(name) for one in found if one["kind"][:6] != "Custom"} == {True}


CONSENTS = {"NPU_POD_EVICTION_FORCE": "true", "NPU_POD_EVICTION_DEVICE_CLASS": "npu", "LOG_LEVEL": "debug"}


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, ("", "false")),
        ({"recovery": {"enabled": True, "auto": ["reset", "reload"]}}, ("reset,reload", "false")),
        ({"manager": {"env": CONSENTS}}, ("", "true")),
        ({"manager": {"env": CONSENTS}, "healthWatch": {"env": {"NPU_POD_EVICTION_FORCE": "false"}}}, ("", "false")),
    ],
    ids=str,
)
def test_health_watch_has_the_steps_without_approval_and_the_consents_of_the_run(
    helm: Helm, values: Json, wanted: tuple[str, str]
) -> None:
    objects = helm.render({"vendor": "nvidia", **switched(recovery=True), **values}, "x")
    containers = only(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    (watch,) = [one for one in containers if one["name"] == "health-watch"]
    env = {one["name"]: one.get("value", "") for one in watch["env"]}
    assert len(env) == len(watch["env"])
    assert (env["AUTO_RECOVER"], env["NPU_POD_EVICTION_FORCE"]) == wanted
    assert ("NPU_POD_EVICTION_DEVICE_CLASS" in env, "LOG_LEVEL" in env) == ("manager" in values, False)


@pytest.mark.parametrize(("env", "wanted"), [({}, "reset,reboot"), ({"AUTO_RECOVER": "false"}, "false")], ids=str)
def test_the_rebooter_has_the_steps_without_approval_too(helm: Helm, env: Json, wanted: str) -> None:
    recovery = {"enabled": True, "auto": ["reset", "reboot"]}
    values: Json = {"vendor": "nvidia", "recovery": recovery, "rebooter": {"enabled": True, "env": env}}
    template = only(helm.render(values, "x"), "DaemonSet", "nvidia-driver-rebooter")["spec"]["template"]
    (rebooter,) = template["spec"]["containers"]
    assert [one["value"] for one in rebooter["env"] if one["name"] == "AUTO_RECOVER"] == [wanted]


def test_a_list_or_map_that_is_null_adds_nothing(helm: Helm) -> None:
    nothing = dict.fromkeys(("nodeSelector", "tolerations", "volumes", "imagePullSecrets"))
    plain, found = (helm.render({"vendor": "ascend", **more}, "x") for more in ({}, nothing))
    assert meaning(found) == meaning(plain)


def test_the_values_in_the_documentation_are_taken(helm: Helm) -> None:
    text = (DEPLOY.parent / "docs/install.md").read_text()
    (values,) = re.findall(r"```yaml\n# values.yaml\n(.*?)```", text, re.DOTALL)
    template = only(helm.render(yaml.safe_load(values), "rbln-system"), "DaemonSet")["spec"]["template"]
    assert "sample" not in json.dumps(template), "nothing of the sample is left"
    assert template["metadata"]["annotations"][DIGEST] == "my-driver-2.0.1"


def test_helm_itself_has_nothing_against_the_chart(helm: Helm) -> None:
    assert {vendor: output for vendor in OVERLAYS if (output := helm.lint({"vendor": vendor}))} == {}


def test_every_value_has_its_schema_and_a_comment_and_no_other_has() -> None:
    text = (chart.CHART / "values.yaml").read_text()
    values, schema = yaml.safe_load(text), json.loads((chart.CHART / "values.schema.json").read_text())

    def compare(given: Any, form: Json, path: str) -> None:
        if "properties" in form and path != "/global":
            assert form["additionalProperties"] is False, path
            assert given.keys() == form["properties"].keys() - {"global"}, path
            for key, inner in given.items():
                compare(inner, form["properties"][key], f"{path}/{key}")

    compare(values, schema, "")
    for name in values.keys() - {"imagePullSecrets", "tolerations", "volumes"}:
        assert re.search(rf"^# .*\n{name}:", text, re.MULTILINE), f"{name} has no comment"


def test_the_switches_of_the_chart_are_the_components_with_the_vendors_where_not_all_have_one() -> None:
    text = (chart.CHART / "values.yaml").read_text()
    for component in ("safe-load", "recovery"):
        (comment,) = re.findall(rf"((?:^# .*\n)+){value_of(component)}:", text, re.MULTILINE)
        named = {vendor for vendor in OVERLAYS if re.search(rf"\b{vendor}\b", comment)}
        assert named == {vendor for vendor, names in chart.offered().items() if component in names}
    values = yaml.safe_load(text)
    switches = {name for name, inner in values.items() if isinstance(inner, dict) and "enabled" in inner}
    derived = {"openshift-rebooter", "openshift-rollout"}
    wanted = {value_of(name) for names in chart.offered().values() for name in names if name not in derived}
    assert switches == wanted


def test_what_no_one_condition_can_say_is_refused() -> None:
    node = layers.lifted({"spec": {"word": "a", "other": 1}})
    layers.lay(node, {"spec": {"word": "b"}}, When(having=frozenset({"metrics"})))
    text = layers.text(node, ALWAYS)
    assert text.index("if not (include") < text.index("word: a") < text.index("else if include") < text.index("word: b")
    with pytest.raises(ValueError, match="more than one condition"):
        layers.lay(node, {"spec": {"word": "c"}}, When(frozenset({"nvidia"}), frozenset({"eviction"})))
    conditional = layers.Fields({"x": [layers.Case(When(having=frozenset({"metrics"})), 1)]})
    with pytest.raises(ValueError, match="can be empty"):
        layers.text(layers.Fields({"spec": [layers.Case(ALWAYS, conditional)]}), ALWAYS)
