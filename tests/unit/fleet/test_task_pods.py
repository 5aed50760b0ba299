"""A short-lived pod is the driver's template with another command: its form, what it never keeps, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from msgspec.structs import replace

from driver_manager.cli.by_hand import preflight_command
from driver_manager.cli.reconcile import reconcile_command
from driver_manager.domain import selectors
from driver_manager.domain.fleet.spec import Fleet, Revision, Task
from driver_manager.domain.fleet.state import NOT_OF_PREFLIGHT, TASKS, CreatePod, PodMaker, TemplateUnusable
from scripts.releasing.kustomize import OVERLAYS, only, render
from tests.support.fakes.fleet_builders import NEW, fleet, node

Json = dict[str, Any]
GOLDEN = Path(__file__).parents[1] / "golden/preflight-pod.json"

MANAGER: Json = {
    "name": "k8s-driver-manager",
    "image": "registry.example/driver-manager:1",
    "command": ["driver-manager"],
    "args": ["reconcile-driver-state", "--evict-holders"],
    "securityContext": {"privileged": True},
    "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    "resources": {"requests": {"cpu": "50m"}, "claims": [{"name": "npu"}]},
    "volumeMounts": [{"name": "host-root", "mountPath": "/host", "readOnly": True}],
}
TEMPLATE: Json = {
    "metadata": {"labels": {"app": "driver"}, "annotations": {"driver-config-digest": "2.0.1"}},
    "spec": {
        "serviceAccountName": "driver",
        "priorityClassName": "system-node-critical",
        "nodeSelector": {"npu": "true"},
        "affinity": {"nodeAffinity": {}},
        "tolerations": [{"operator": "Exists"}],
        "hostNetwork": True,
        "imagePullSecrets": [{"name": "pull"}],
        "terminationGracePeriodSeconds": 60,
        "resourceClaims": [{"name": "npu"}],
        "initContainers": [{"name": "first", "image": "a", "command": ["true"]}, MANAGER],
        "containers": [{"name": "driver", "image": "driver:2"}],
        "volumes": [
            {"name": "host-root", "hostPath": {"path": "/"}},
            {"name": "driver-config", "configMap": {"name": "driver"}},
        ],
    },
}


def facts(template: Any = TEMPLATE, **said: Any) -> Fleet:
    text = template if isinstance(template, str) else json.dumps(template)
    revisions = (Revision("driver-new", NEW, 2, text),)
    return fleet((node("a"),), revisions=revisions, rollout_uid="ro-uid", **said)


def made(template: Any = TEMPLATE, **said: Any) -> CreatePod:
    return PodMaker(facts(template, **said), NEW, Task.PREFLIGHT).pod(node("a"))


def container(manager: Json) -> Json:
    spec = {**TEMPLATE["spec"], "initContainers": [manager]}
    found, *_ = made({**TEMPLATE, "spec": spec}).body["spec"]["containers"]
    return dict(found)


def test_the_pod_is_the_template_with_another_command() -> None:
    assert made().body == json.loads(GOLDEN.read_text())


def test_it_is_none_of_the_daemonsets_pods_and_goes_with_the_rollout() -> None:
    act = made()
    labels = act.body["metadata"]["labels"]
    assert not selectors.parse("app=driver").matches(labels)
    assert "app" not in labels
    assert selectors.parse(TASKS).matches(labels)
    assert act.body["metadata"]["ownerReferences"][0]["uid"] == "ro-uid"
    assert (act.namespace, act.name, act.node) == ("npu", act.body["metadata"]["name"], "a")


def test_nobody_has_to_leave_for_it() -> None:
    spec = made().body["spec"]
    assert not {"priorityClassName", "priority", "preemptionPolicy"} & spec.keys()
    assert all("resources" not in one for one in spec["containers"])


def test_the_pod_that_clears_has_every_option_of_the_run_and_its_priority() -> None:
    manager = {**MANAGER, "args": ["reconcile-driver-state", "--metrics-textfile=/x", "-o", "json", "--evict-holders"]}
    template = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "initContainers": [manager]}}
    maker = PodMaker(facts(template), NEW, Task.CLEAR)
    spec = maker.pod(node("a"), "1").body["spec"]
    (found,) = spec["containers"]
    assert found["args"] == [
        "reconcile-driver-state",
        "--metrics-textfile=/x",
        "--evict-holders",
        "--clear-for",
        NEW,
    ]
    assert spec["priorityClassName"] == "system-node-critical"
    assert "resources" not in found
    assert spec["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] == 1860
    assert maker.pod(node("a"), "1").name != maker.pod(node("a"), "2").name
    assert {"--clear-for", "--dry-run"} <= {name for one in reconcile_command.params for name in one.opts}


def test_the_name_follows_from_what_it_is_for() -> None:
    assert made() == made()
    maker = PodMaker(facts(), NEW, Task.PREFLIGHT)
    names = {maker.pod(node("a")).name, maker.pod(node("b")).name, maker.pod(node("a", uid="a-again")).name}
    assert len(names) == 3
    assert made(rollout="npu/" + "x" * 253).name != made().name
    assert len(made(rollout="npu/" + "x" * 253).name) <= 63, "it is the pod's hostname, too"


def test_a_label_fits_whatever_a_node_is_called() -> None:
    long = replace(node("a"), name="n" * 62 + ".example.com")
    labels = PodMaker(facts(), NEW, Task.PREFLIGHT).pod(long).body["metadata"]["labels"]
    assert all(selectors.is_label_value(value) for value in labels.values())


@pytest.mark.parametrize(
    ("said", "command", "args"),
    [
        ({"args": ["reconcile-driver-state"]}, ["driver-manager"], []),
        ({"command": None, "args": ["reconcile-driver-state"]}, None, []),
        (
            {"command": ["/usr/bin/driver-manager", "reconcile-driver-state"], "args": []},
            ["/usr/bin/driver-manager"],
            [],
        ),
        (
            {"command": ["tini", "--", "driver-manager"], "args": ["reconcile-driver-state", "--no-wait"]},
            ["tini", "--", "driver-manager"],
            ["--no-wait"],
        ),
        (
            {
                "args": [
                    "reconcile-driver-state",
                    "-o",
                    "json",
                    "--profile",
                    "npu",
                    "--metrics-textfile",
                    "/x",
                    "--dry-run",
                ]
            },
            ["driver-manager"],
            ["--profile", "npu"],
        ),
        (
            {"args": ["reconcile-driver-state", "-ojson", "--metrics-textfile=/x", "--output=text", "--take-over"]},
            ["driver-manager"],
            ["--take-over"],
        ),
    ],
)
def test_its_command_has_the_same_options_as_far_as_there_are(said: Json, command: Any, args: list[str]) -> None:
    found = container({key: value for key, value in {**MANAGER, **said}.items() if value is not None})
    assert found.get("command") == command
    assert found["args"] == ["preflight", *args, "--driver-pod-leaves", "--output", "json"]


def test_the_options_that_are_left_out_are_those_that_only_a_reconcile_has() -> None:
    def options(command: click.Command) -> set[str]:
        return {name for one in command.params for name in one.opts if name.startswith("--")}

    assert options(reconcile_command) - options(preflight_command) == NOT_OF_PREFLIGHT
    assert "--driver-pod-leaves" in options(preflight_command)


@pytest.mark.parametrize(
    "template",
    [
        "",
        "[]",
        "{}",
        "garbage",
        {"spec": {"containers": [MANAGER]}},
        {"spec": {"initContainers": [{**MANAGER, "args": ["health-watch"]}]}},
        {
            "spec": {
                "initContainers": [{**MANAGER, "command": ["sh", "-c"], "args": ["echo", "reconcile-driver-state"]}]
            }
        },
        {"spec": {"initContainers": [{**MANAGER, "args": ["uninstall_driver"]}]}},
    ],
)
def test_a_template_that_runs_no_reconcile_is_refused(template: Any) -> None:
    with pytest.raises(TemplateUnusable):
        made(template)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_has_a_template_that_serves(overlay: str) -> None:
    template = only(render(overlay), "DaemonSet", _driver(overlay))["spec"]["template"]
    spec = made(template).body["spec"]
    found, *pulls = spec["containers"]
    assert found["args"][0] == "preflight"
    known = [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]
    assert {one["image"] for one in pulls} == {one["image"] for one in known} - {found["image"]}
    assert {one["name"] for one in spec["volumes"]} == {one["name"] for one in found["volumeMounts"]}


def _driver(overlay: str) -> str:
    return next(str(one["metadata"]["name"]) for one in render(overlay) if one["kind"] == "DaemonSet")
