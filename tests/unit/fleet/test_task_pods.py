"""A short-lived pod is the driver's template with another command: its form, what it never keeps, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from driver_manager.cli.reconcile import preflight_command, reconcile_command
from driver_manager.domain import selectors
from driver_manager.domain.fleet import state
from driver_manager.domain.fleet.spec import FleetNode, Revision, Task
from driver_manager.domain.fleet.state import TASKS, CreatePod, TemplateUnusable, profile_of, task_pods, tasks_of
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
CONFIG = {"name": "driver-config", "configMap": {"name": "driver"}}
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
        "volumes": [{"name": "host-root", "hostPath": {"path": "/"}}, CONFIG],
    },
}


NODE_A, LOOK = node("a"), Task.PREFLIGHT


def made(
    body: Any = TEMPLATE, task: Task = LOOK, of: FleetNode = NODE_A, attempt: str = "", **fields: Any
) -> CreatePod:
    text = body if isinstance(body, str) else json.dumps(body)
    fields = {"rollout_uid": "ro-uid", "profile": "rebellions", "revisions": (Revision("r", NEW, 2, text),), **fields}
    (found,) = task_pods(fleet((of,), **fields), NEW, task, (of,), attempt)
    return found


def running(**fields: Any) -> Json:
    """The template with another manager; a field that is None is absent."""
    manager = {key: value for key, value in {**MANAGER, **fields}.items() if value is not None}
    return {**TEMPLATE, "spec": {**TEMPLATE["spec"], "initContainers": [manager]}}


def test_the_pod_is_the_template_with_another_command_and_a_controller_of_its_profile_finds_it() -> None:
    act = made()
    assert act.body == json.loads(GOLDEN.read_text())
    assert (act.namespace, act.name, act.node) == ("npu", act.body["metadata"]["name"], "a")
    for selector, is_ours in ((TASKS, True), (tasks_of("rebellions"), True), (tasks_of("nvidia"), False)):
        assert selectors.parse(selector).matches(act.body["metadata"]["labels"]) is is_ours


def test_the_pod_that_clears_has_every_option_of_the_run_and_its_priority() -> None:
    args = ["reconcile-driver-state", "--metrics-textfile=/x", "-o", "json", "--evict-holders"]
    first, second = (made(running(args=args), Task.CLEAR, attempt=attempt) for attempt in "12")
    spec = first.body["spec"]
    (found,) = spec["containers"]
    assert found["args"] == [*args[:2], "--evict-holders", "--clear-for", NEW]
    assert (spec["priorityClassName"], spec["restartPolicy"]) == ("system-node-critical", "Never")
    assert spec["activeDeadlineSeconds"] == 1860
    assert "resources" not in found
    assert first.name != second.name
    assert {"--clear-for", "--dry-run"} <= {name for one in reconcile_command.params for name in one.opts}


def test_the_name_follows_from_what_it_is_for() -> None:
    assert made() == made()
    nodes = (node("a"), node("b"), node("a", uid="a-again"))
    names = [*(made(of=one).name for one in nodes), made(rollout="npu/" + "x" * 253).name]
    assert len(set(names)) == 4
    assert max(map(len, names)) <= 63, "it is the pod's hostname, too"
    labels = made(of=node("n" * 62 + ".example.com")).body["metadata"]["labels"]
    assert all(selectors.is_label_value(value) for value in labels.values())


RECONCILE = "reconcile-driver-state"
COMMAND = ["driver-manager"]
OF_A_RUN, OF_ANOTHER = [RECONCILE, "-o", "json", "--profile", "npu"], [RECONCILE, "-ojson", "--metrics-textfile=/x"]


@pytest.mark.parametrize(
    ("command", "args", "before", "after"),
    [
        (COMMAND, [RECONCILE], COMMAND, []),
        (None, [RECONCILE], None, []),
        (["/usr/bin/driver-manager", RECONCILE], [], ["/usr/bin/driver-manager"], []),
        (["tini", "--", *COMMAND], [RECONCILE, "--no-wait"], ["tini", "--", *COMMAND], ["--no-wait"]),
        (COMMAND, [*OF_A_RUN, "--metrics-textfile", "/x", "--dry-run"], COMMAND, ["--profile", "npu"]),
        (COMMAND, [*OF_ANOTHER, "--output=text", "--take-over"], COMMAND, ["--take-over"]),
    ],
)
def test_its_command_has_the_same_options_as_far_as_there_are(
    command: list[str] | None, args: list[str], before: list[str] | None, after: list[str]
) -> None:
    found, *_ = made(running(command=command, args=args)).body["spec"]["containers"]
    assert found.get("command") == before
    assert found["args"] == ["preflight", *after, "--driver-pod-leaves", "--output", "json"]


def test_the_options_that_are_left_out_are_those_that_only_a_reconcile_has() -> None:
    def options(command: click.Command) -> set[str]:
        return {name for one in command.params for name in one.opts if name.startswith("--")}

    assert options(reconcile_command) - options(preflight_command) == state.NOT_OF_PREFLIGHT
    assert "--driver-pod-leaves" in options(preflight_command)


def test_the_profile_of_a_template_is_the_one_that_its_init_container_names() -> None:
    def profile(**fields: Any) -> str:
        return profile_of(running(**fields)["spec"])

    def named(value: str) -> Json:
        return {"env": [{"name": "DRIVER_PROFILE", "value": value}]}

    assert profile(**named("nvidia")) == "nvidia"
    assert profile(env=None, args=[RECONCILE, "--profile", "amd"]) == "amd"
    assert profile(**named("nvidia"), args=[RECONCILE, "--profile=amd"]) == "amd"
    assert profile() == profile(**named("")) == profile(**named("auto")) == ""
    assert profile(env=[{"name": "DRIVER_PROFILE", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]) == ""
    assert profile(args=[RECONCILE, "--profile=$(VENDOR)"]) == profile(args=[RECONCILE, "--profile"]) == ""
    assert profile(**named("nvidia"), args=["health-watch"]) == ""


def test_a_template_that_runs_no_reconcile_is_refused() -> None:
    others = ({"args": ["health-watch"]}, {"args": ["uninstall_driver"]})
    shell = {"command": ["sh", "-c"], "args": ["echo", RECONCILE]}
    templates = [running(**fields) for fields in (*others, shell)]
    for template in ("", "[]", "{}", "garbage", {"spec": {"containers": [MANAGER]}}, *templates):
        with pytest.raises(TemplateUnusable):
            made(template)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_names_its_profile_and_has_a_template_that_serves(overlay: str) -> None:
    template = only(render(overlay), "DaemonSet", f"{overlay}-driver")["spec"]["template"]
    assert profile_of(template["spec"]) == overlay
    spec = made(template).body["spec"]
    found, *pulls = spec["containers"]
    assert found["args"][0] == "preflight"
    known = [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]
    assert {one["image"] for one in pulls} == {one["image"] for one in known} - {found["image"]}
    assert {one["name"] for one in spec["volumes"]} == {one["name"] for one in found["volumeMounts"]}
