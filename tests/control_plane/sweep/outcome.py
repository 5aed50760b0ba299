"""Owns what is compared after a run: everything on the Node, on the host and of the pods, in a form that repeats."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from driver_manager.domain.profile import Profile
from tests.control_plane.api import wait_until
from tests.control_plane.faults import Hold
from tests.control_plane.objects import NODE_KEY
from tests.control_plane.runner import JOURNAL
from tests.control_plane.shown import Shown, of_others, shown
from tests.control_plane.sweep.scene import OPERAND, REQUESTED, STATE, Scene

JOURNALS = (JOURNAL, "npu.openfuyao.com/driver-manager.journal")
_INTERRUPTED = re.compile(r"/\.[^/]+\.[0-9a-f]{12}$")
"""A file that was being written when its writer was killed; nobody reads it."""

_UNLIKE = ("writer", "time")
"""Of a marker: who wrote it, and when."""


@dataclass(frozen=True)
class Outcome:
    """What a run leaves. `files` by path on the host, without what the kernel shows; `evicted` by uid.

    `shown` is the driver's state on the Node, which is in no other field.
    """

    code: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    is_cordoned: bool
    modules: Mapping[str, str]
    files: Mapping[str, str]
    mounts: str
    services: tuple[str, ...]
    jobs: tuple[str, ...]
    bystander: str
    evicted: Mapping[str, int]
    interrupted: int
    shown: Shown

    @property
    def driver(self) -> tuple[Any, ...]:
        """What of it is the driver's."""
        return self.modules, self.files, self.mounts, self.services


def outcome(scene: Scene, code: int) -> Outcome:
    """What there is now, once the operator is done and the operand runs that runs in the end."""
    sweep_node = scene.sweep_node
    wait_until(lambda: REQUESTED not in sweep_node.node.annotations(), "the operator is done")
    node = sweep_node.node.read()
    if node["metadata"]["labels"].get(sweep_node.operands.deploy_labels[OPERAND]) == "true":
        sweep_node.operands.wait_running(OPERAND)
    files = _files(scene)
    whole = {path: text for path, text in files.items() if not _INTERRUPTED.search(path)}
    return Outcome(
        code=code,
        labels={key: value for key, value in of_others(node["metadata"]["labels"]).items() if key != NODE_KEY},
        annotations=of_others(node["metadata"].get("annotations", {})),
        is_cordoned=bool(node["spec"].get("unschedulable")),
        modules=_modules(scene),
        files=whole,
        mounts=(scene.command_runner.tree.root / "proc/1/mountinfo").read_text(),
        services=tuple(scene.command_runner.tree.services),
        jobs=tuple(job.state() for job in scene.jobs),
        bystander=sweep_node.bystander.state(),
        evicted=_evicted(scene),
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


def gone_back(after_a_boot: Outcome, old: Outcome, profile: Profile) -> Outcome:
    """What is left where the journal of the earlier boot tells of an `old` driver: it is loaded, its digest unknown."""
    unknown = (profile.paths.state_file, profile.paths.load_record)
    return replace(
        after_a_boot,
        modules=old.modules,
        files={path: text for path, text in old.files.items() if path not in unknown},
    )


def _modules(scene: Scene) -> dict[str, str]:
    folder = scene.command_runner.tree.root / "sys/module"
    return {one.name: (one / "version").read_text().strip() for one in sorted(folder.iterdir())}


def _files(scene: Scene) -> dict[str, str]:
    """All files below the host's root but those that the kernel makes; what differs from scene to scene is named.

    The files of the locks say nothing, and the note of who had the node last says something of a living process only:
    a run that finds nothing to do makes none of them. Evidence is what each run saw, at its own time; figures are what
    it took. The note of a failure tells when, and how often in a row.
    """
    root, paths = scene.command_runner.tree.root, scene.command_runner.tree.profile.paths
    aside = (paths.work_lock, paths.effect_lock, paths.owner_note, paths.run_figures, paths.failure_note)
    named = {
        scene.command_runner.tree.boot_id: "<boot id>",
        str(scene.command_runner.tree.bin): "<bin>",
        str(root): "",
        scene.sweep_node.node.name: "<node>",
    }
    found = {}
    for path in sorted(root.rglob("*")):
        inside = "/" + path.relative_to(root).as_posix()
        if path.is_file() and inside not in aside and not inside.startswith(("/proc/", "/sys/", f"{paths.evidence}/")):
            text = path.read_text()
            for value, name in named.items():
                text = text.replace(value, name)
            found[inside] = _without_author(text) if path.name == ".reboot-required" else text
    return found


def _without_author(text: str) -> str:
    marker = json.loads(text)
    assert all(marker.pop(key) for key in _UNLIKE), f"a marker without {_UNLIKE}: {text}"
    return json.dumps(marker, sort_keys=True)


def _evicted(scene: Scene) -> dict[str, int]:
    """How often each pod's eviction reached the server and was not refused, be it that nobody heard the answer."""
    asked: Counter[str] = Counter()
    for exchange in scene.sweep_node.proxy.exchanges("create", "pods/eviction", since=scene.beginning):
        options = exchange.request.body["deleteOptions"]
        is_kept_back = any(fault.action == Hold() for fault in exchange.faults)
        if not options.get("dryRun") and not is_kept_back and exchange.status in (None, 201):
            asked[options["preconditions"]["uid"]] += 1
    return asked
