"""Owns what is compared after a run: everything on the Node, on the host and of the pods, in a form that repeats."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from driver_manager.domain.profile import RUN_RECORD
from tests.support.control_plane.api import wait_until
from tests.support.control_plane.objects import NODE_KEY
from tests.support.control_plane.runner import JOURNAL
from tests.support.control_plane.shown import Shown, of_others, shown
from tests.support.control_plane.sweep.clients import EXPORTER, HOLDER
from tests.support.control_plane.sweep.paths import DEVICES
from tests.support.control_plane.sweep.scene import OPERAND, REQUESTED, STATE, Scene

JOURNALS = (JOURNAL, "npu.openfuyao.com/driver-manager.journal")
_INTERRUPTED = re.compile(r"/\.[^/]+\.[0-9a-f]{12}$")
"""A file that was being written when its writer was killed; nobody reads it."""

_UNLIKE = ("writer", "time")
"""Of a marker: who wrote it, and when."""


@dataclass(frozen=True)
class Outcome:
    """What a run leaves. `files` by path on the host, without what the kernel shows; `evicted` by uid, clients apart.

    `devices`: driver and override of each function on the PCI bus.

    `restarts`: how often each client of the driver was evicted, in each boot; `untold`: those without an Event.

    `shown` is the driver's state on the Node, which is in no other field.
    """

    code: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    is_cordoned: bool
    modules: Mapping[str, str]
    devices: Mapping[str, str]
    files: Mapping[str, str]
    mounts: str
    services: tuple[str, ...]
    jobs: tuple[str, ...]
    bystander: str
    evicted: Mapping[str, int]
    restarts: Mapping[str, tuple[int, ...]]
    untold: tuple[str, ...]
    interrupted: int
    shown: Shown

    @property
    def driver(self) -> tuple[Any, ...]:
        """What of it is the driver's."""
        return self.modules, self.devices, self.files, self.mounts, self.services


def outcome(scene: Scene, code: int) -> Outcome:
    """What there is now, once the operator is done and the operand runs that runs in the end."""
    sweep_node = scene.sweep_node
    wait_until(lambda: REQUESTED not in sweep_node.node.annotations(), "the operator is done")
    node = sweep_node.node.read()
    if node["metadata"]["labels"].get(sweep_node.operands.deploy_labels[OPERAND]) == "true":
        sweep_node.operands.wait_running(OPERAND)
    if scene.path.has_clients:
        sweep_node.exporter.wait_running()
    scene.settle()
    files = _files(scene)
    whole = {path: text for path, text in files.items() if not _INTERRUPTED.search(path)}
    return Outcome(
        code=code,
        labels={key: value for key, value in of_others(node["metadata"]["labels"]).items() if key != NODE_KEY},
        annotations=of_others(node["metadata"].get("annotations", {})),
        is_cordoned=bool(node["spec"].get("unschedulable")),
        modules=_modules(scene),
        devices=_devices(scene),
        files=whole,
        mounts=(scene.command_runner.tree.root / "proc/1/mountinfo").read_text(),
        services=tuple(scene.command_runner.tree.services),
        jobs=tuple(job.state() for job in scene.jobs),
        bystander=sweep_node.bystander.state(),
        evicted=_evicted(scene),
        restarts=_restarts(scene),
        untold=_untold(scene),
        interrupted=len(files) - len(whole),
        shown=shown(node),
    )


def after_a_boot(one: Outcome) -> Outcome:
    """`one` without what a reboot may have made needless: with no driver loaded nobody has to leave.

    What a reboot was asked for is noted beside the marker, by a run that came so far: it stays until it is fulfilled.
    """
    labels = {key: value for key, value in one.labels.items() if key != STATE}
    files = {path: text for path, text in one.files.items() if not path.endswith("/.reboot-required.wish")}
    return replace(one, labels=labels, files=files, jobs=())


def _modules(scene: Scene) -> dict[str, str]:
    folder = scene.command_runner.tree.root / "sys/module"
    return {one.name: (one / "version").read_text().strip() for one in sorted(folder.iterdir())}


def _devices(scene: Scene) -> dict[str, str]:
    bus = scene.bus
    if bus is None:
        return {}
    return {one: f"driver {bus.driver_of(one)}, override {bus.read(one, 'driver_override')}" for one in DEVICES}


def _files(scene: Scene) -> dict[str, str]:
    """All files below the host's root but those that the kernel makes; what differs from scene to scene is named.

    The files of the locks say nothing, and the note of who had the node last says something of a living process only:
    a run that finds nothing to do makes none of them. Evidence is what each run saw, at its own time; figures are what
    it took. The note of a failure tells when, and how often in a row.
    """
    root, paths = scene.command_runner.tree.root, scene.command_runner.tree.profile.paths
    locks = (paths.work_lock, paths.effect_lock, paths.client_lock)
    aside = (*locks, paths.owner_note, paths.run_figures, paths.failure_note)
    named = {
        scene.command_runner.tree.boot_id: "<boot id>",
        str(scene.command_runner.tree.bin): "<bin>",
        str(root): "",
        scene.sweep_node.node.name: "<node>",
    }
    found = {}
    for path in sorted(root.rglob("*")):
        inside = "/" + path.relative_to(root).as_posix()
        if path.is_symlink() and not inside.startswith("/proc/"):
            found[inside] = f"-> {path.readlink()}"
            continue
        if path.is_file() and inside not in aside and not inside.startswith(("/proc/", "/sys/", f"{paths.evidence}/")):
            if RUN_RECORD in inside:
                continue  # of a run that was killed before the Node named it, or after it named it no more
            text = path.read_text()
            for value, name in named.items():
                text = text.replace(value, name)
            found[inside] = _rewritten(inside, text, paths.client_record)
    return found


def _rewritten(path: str, text: str, client_record: str) -> str:
    if path == client_record:
        return _settled(text)
    return _without_author(text) if path.endswith("/.reboot-required") else text


def _without_author(text: str) -> str:
    marker = json.loads(text)
    assert all(marker.pop(key) for key in _UNLIKE), f"a marker without {_UNLIKE}: {text}"
    return json.dumps(marker, sort_keys=True)


def _evicted(scene: Scene) -> dict[str, int]:
    """How often the eviction of each pod that is no client was granted."""
    granted = _granted(scene, scene.boots[0])
    return Counter(uid for uid, name in granted if not _client(scene, name))


def _restarts(scene: Scene) -> dict[str, tuple[int, ...]]:
    names = (EXPORTER,) * scene.path.has_clients + (HOLDER,) * scene.path.is_held
    boots = zip(scene.boots, [*scene.boots[1:], None], strict=True)
    counts = [Counter(_client(scene, pod) for _, pod in _granted(scene, *boot)) for boot in boots]
    return {name: tuple(count[name] for count in counts) for name in names}


def _untold(scene: Scene) -> tuple[str, ...]:
    """The exporter's pods that were evicted in this boot, without an Event that says so."""
    node = scene.sweep_node.node
    about = f"involvedObject.name={node.name},reason=DriverClientRestarted"
    told = " ".join(event["message"] for event in node.api.list("/api/v1/events", fieldSelector=about))
    granted = _granted(scene, scene.boots[-1])
    return tuple(name for _, name in granted if _client(scene, name) == EXPORTER and name not in told)


def _client(scene: Scene, pod: str) -> str:
    """Which client the pod of this name is, "" for none."""
    if not scene.path.has_clients:
        return ""
    if scene.holder is not None and pod in scene.holder.names:
        return HOLDER
    return EXPORTER if pod.startswith(scene.sweep_node.exporter.prefix) else ""


def _granted(scene: Scene, since: int, until: int | None = None) -> list[tuple[str, str]]:
    """Uid and name for each eviction that the server granted between two marks, be it that nobody heard the answer.

    A run that dies has several requests under way. One that was cut off on its way counts for nothing: nobody knows
    whether it arrived, and the next run is right to ask again.
    """
    found = []
    for exchange in scene.sweep_node.proxy.exchanges("create", "pods/eviction", since=since):
        request, is_in_time = exchange.request, until is None or exchange.number < until
        if is_in_time and not request.is_dry_run and exchange.served == 201:
            found.append((request.body["deleteOptions"]["preconditions"]["uid"], request.target.name))
    return found


def _settled(text: str) -> str:
    """Of the record of clients: how many there are in which state; who they are and when differs."""
    record = json.loads(text)
    states = sorted(one["state"] for one in record["clients"])
    return json.dumps([states, len(record["unknown"]), record["hasLooked"], record["isShown"]])
