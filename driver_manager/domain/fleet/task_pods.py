"""The short-lived pods of a rollout: the driver's pod template with another command for the driver manager.

Owns how the container that runs it is found in a template, what such a pod keeps of it, and the labels and the name by
which it is told from every other pod: it has none of the template's labels, so that no DaemonSet, Service or budget
counts it as a driver. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.fleet.acts import CreatePod
from driver_manager.domain.fleet.fields import GROUP, KIND, VERSION
from driver_manager.domain.fleet.model import Fleet, FleetNode, Task
from driver_manager.domain.pod import PROGRAM
from driver_manager.domain.wire import parsed

TASK_LABEL = f"{GROUP}/task"
ROLLOUT_LABEL = f"{GROUP}/rollout"
REVISION_LABEL = f"{GROUP}/revision"
NODE_LABEL = f"{GROUP}/node"
TASKS = f"{TASK_LABEL} in ({','.join(task.value for task in Task)})"
"""Selects the pods of all tasks that this version knows."""

LIMIT_S = 300
"""A preflight that has not ended by then is ended by the kubelet; most of that is for its image."""

CLEAR_MORE_S = 60
"""A pod that clears is ended by the kubelet so long after its node has failed for want of time."""

RECONCILE = "reconcile-driver-state"

NOT_OF_PREFLIGHT = frozenset({"--dry-run", "--metrics-textfile"})
"""Options that only a reconcile has."""

_FLAGS = frozenset({"--dry-run"})
_OUTPUT = frozenset({"-o", "--output"})

_NOT_KEPT = frozenset(
    {
        # of all containers but one
        *("containers", "initContainers", "ephemeralContainers", "volumes", "restartPolicy", "readinessGates"),
        # of the choice of a node, which is made
        *("affinity", "nodeSelector", "topologySpreadConstraints", "schedulerName", "schedulingGates"),
        # of what it asks for: it comes beside the driver pod, and needs little
        *("resources", "resourceClaims", "overhead"),
    }
)
_PRIORITY = frozenset({"priority", "priorityClassName", "preemptionPolicy"})
"""By which the kubelet makes room for a pod: nobody has to leave for one that only looks."""

_MAX_LABEL_CHARS = 63
_MAX_PREFIX_CHARS = 40
_DIGEST_CHARS = 12

Json = dict[str, Any]


class TemplateUnusable(ConfigError):
    """No short-lived pod can be made from a pod template."""


class PodMaker:
    """Makes the pods of one task for the rollout of `fleet`, from the template of `revision`.

    Raises TemplateUnusable where no init container of it runs a reconcile.
    """

    def __init__(self, fleet: Fleet, revision: str, task: Task) -> None:
        self._fleet, self._revision, self._task = fleet, revision, task
        self._template = _template(fleet, revision)
        self._spec = _spec(self._template["spec"], task, revision)
        if task is Task.CLEAR:
            self._spec["activeDeadlineSeconds"] = int(fleet.policy.node_timeout_s) + CLEAR_MORE_S

    def pod(self, node: FleetNode, attempt: str = "") -> CreatePod:
        """The pod for `node`, the same one for the same `attempt`."""
        name = pod_name(self._fleet, self._revision, self._task, node, attempt)
        namespace, _, rollout = self._fleet.rollout.partition("/")
        owner = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": rollout,
            "uid": self._fleet.rollout_uid,
            "controller": True,
        }
        metadata = {
            "name": name,
            "namespace": namespace,
            "labels": {
                TASK_LABEL: self._task.value,
                ROLLOUT_LABEL: _label(rollout),
                REVISION_LABEL: _label(self._revision),
                NODE_LABEL: _label(node.name),
            },
            # What the container reads of its own pod: the digest of the wanted driver.
            "annotations": dict((self._template.get("metadata") or {}).get("annotations") or {}),
            "ownerReferences": [owner],
        }
        spec = {**self._spec, "nodeName": node.name}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        return CreatePod(namespace, name, node.name, self._task, body)


class Clears:
    """The pods that clear nodes: those that there are, by name, and how others are made."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.pods = {pod.name: pod for pod in fleet.task_pods if pod.task is Task.CLEAR}
        self._makers: dict[str, PodMaker] = {}

    def name(self, revision: str, node: FleetNode, attempt: str) -> str:
        """The name of the pod for an attempt to clear the node."""
        return pod_name(self.fleet, revision, Task.CLEAR, node, attempt)

    def maker(self, revision: str) -> PodMaker:
        """What makes them from the template of a revision. Raises TemplateUnusable."""
        if revision not in self._makers:
            self._makers[revision] = PodMaker(self.fleet, revision, Task.CLEAR)
        return self._makers[revision]


def pod_name(fleet: Fleet, revision: str, task: Task, node: FleetNode, attempt: str = "") -> str:
    """The name of a pod follows from what it is for, so that two who make it make one."""
    rollout = fleet.rollout.partition("/")[2]
    key = f"{fleet.rollout_uid}/{task.value}/{revision}/{node.uid or node.name}/{attempt}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{rollout[:_MAX_PREFIX_CHARS].rstrip('-.')}-{task.value}-{digest}"


def _template(fleet: Fleet, revision: str) -> Json:
    text = next((one.template for one in fleet.revisions if one.hash == revision), "")
    try:
        found = parsed(text)
    except ValueError:
        found = None
    if type(found) is not dict or type(found.get("spec")) is not dict:
        raise TemplateUnusable(
            f"the pod template of revision {revision} cannot be read", "Check the DaemonSet's ControllerRevisions."
        )
    return found


def _spec(spec: Mapping[str, Any], task: Task, revision: str) -> Json:
    """The pod's spec, but for the node."""
    manager = next(filter(_is_manager, spec.get("initContainers") or ()), None)
    if manager is None:
        raise TemplateUnusable(
            f"no init container of the pod template runs `{PROGRAM} {RECONCILE}`",
            "Add it as deploy/base/daemonset.yaml has it.",
        )
    container = {key: value for key, value in manager.items() if key not in ("resources", "restartPolicy")}
    container |= _command(manager, task, revision)
    # Where the command could not say why it ended: a crash, an image without it.
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    used = {one.get("name") for key in ("volumeMounts", "volumeDevices") for one in manager.get(key) or ()}
    dropped = _NOT_KEPT if task is Task.CLEAR else _NOT_KEPT | _PRIORITY
    kept = {key: value for key, value in spec.items() if key not in dropped}
    return {
        **kept,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIMIT_S,
        "containers": [container, *(_pulls(spec, manager) if task is Task.PREFLIGHT else ())],
        "volumes": [one for one in spec.get("volumes") or () if one.get("name") in used],
    }


def _pulls(spec: Mapping[str, Any], manager: Mapping[str, Any]) -> Iterator[Json]:
    """A container for each other image of the template: once it has ended, or could not even start, the image is here.

    It mounts nothing, and runs nothing of the image but a shell that ends at once.
    """
    known = {manager.get("image")}
    for one in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        image = one.get("image")
        if image and image not in known:
            known.add(image)
            policy = {key: one[key] for key in ("imagePullPolicy",) if key in one}
            name = f"pull-{one.get('name')}"[:_MAX_LABEL_CHARS].rstrip("-")
            yield {"name": name, "image": image, **policy, "command": ["/bin/sh", "-c", ":"]}


def _is_manager(container: Mapping[str, Any]) -> bool:
    words = _words(container)
    if RECONCILE not in words:
        return False
    before = words[: words.index(RECONCILE)]
    return not before or before[-1].rpartition("/")[2] == PROGRAM


def _words(container: Mapping[str, Any]) -> list[str]:
    """What the container runs; without a command that of its image comes first."""
    return [str(word) for key in ("command", "args") for word in container.get(key) or ()]


def _command(container: Mapping[str, Any], task: Task, revision: str) -> Json:
    """Command and arguments: the same options, as far as the other command has them."""
    words = _words(container)
    at = words.index(RECONCILE)
    command = {"command": words[:at]} if container.get("command") else {}
    if task is Task.CLEAR:
        return {**command, "args": [RECONCILE, *_without(words[at + 1 :], _FLAGS | _OUTPUT), "--clear-for", revision]}
    kept = _without(words[at + 1 :], NOT_OF_PREFLIGHT | _OUTPUT)
    # Beside the driver pod that is to be replaced, whose own processes have the device open.
    return {**command, "args": ["preflight", *kept, "--driver-pod-leaves", "--output", "json"]}


def _without(words: Sequence[str], names: Iterable[str]) -> list[str]:
    """`words` without the options `names`, and without their values."""
    known, kept = frozenset(names), list[str]()
    is_value = False
    for word in words:
        name, joint, _ = word.partition("=")
        if is_value:
            is_value = False
        elif name in known:
            is_value = not joint and name not in _FLAGS
        elif not (word.startswith("-o") and not word.startswith("--")):
            kept.append(word)
    return kept


def _label(text: str) -> str:
    """`text` as the value of a label: for people, who select by it."""
    return text[:_MAX_LABEL_CHARS].rstrip("-_.")
