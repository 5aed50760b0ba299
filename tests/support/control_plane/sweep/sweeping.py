"""The sweep of one path: the recorded run, a kill at every effect, and the comparison of what is left."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import TypeVar

from driver_manager.domain.profile import RUN_RECORD
from tests.support.control_plane.api import wait_until
from tests.support.control_plane.kubelet import NODE_KEY, NOTHING, Shown, of_others, shown
from tests.support.control_plane.runner import JOURNAL, REQUESTED
from tests.support.control_plane.runner import UPGRADE_STATE as STATE
from tests.support.control_plane.sweep.scene import (
    DEVICES,
    EDITED,
    EXPORTER,
    HOLDER,
    OPERAND,
    Effect,
    Kill,
    Scene,
    SweepNode,
    SweepPath,
    uncovered,
)
from tests.support.selection import Share

JOURNALS = (JOURNAL, "npu.openfuyao.com/driver-manager.journal")
_INTERRUPTED = re.compile(r"/\.[^/]+\.[0-9a-f]{12}$")
"""A file that was being written when its writer was killed; it is never read."""

_UNLIKE = ("writer", "time")
"""Of a marker: who wrote it, and when."""


@dataclass(frozen=True)
class Outcome:
    """What a run leaves. `files` by path on the host, without what the kernel shows; `evicted` by uid, clients apart.

    `devices`: driver and override of each PCI function. `restarts`: how often each client was evicted, in each boot;
    `without_event`: those without an Event. `shown` is the driver's state on the Node, which is in no other field.
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
    without_event: tuple[str, ...]
    interrupted: int
    shown: Shown


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
        without_event=_without_event(scene),
        interrupted=len(files) - len(whole),
        shown=shown(node),
    )


def after_a_boot(one: Outcome) -> Outcome:
    """`one` without what a reboot may have made needless, and the note of what it was asked for."""
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
    """All files below the host's root but the kernel's; what differs from scene to scene is named.

    Left out: locks, the note of who had the node last, evidence, figures, the note of a failure, which tells when, and
    the baseline, which names pods.
    """
    root, paths = scene.command_runner.tree.root, scene.command_runner.tree.profile.paths
    locks = (paths.work_lock, paths.effect_lock, paths.client_lock)
    aside = (*locks, paths.owner_note, paths.run_figures, paths.failure_note, paths.baseline)
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
    granted = _granted(scene, scene.boots[0])
    return Counter(uid for uid, name in granted if not _client(scene, name))


def _restarts(scene: Scene) -> dict[str, tuple[int, ...]]:
    names = (EXPORTER,) * scene.path.has_clients + (HOLDER,) * scene.path.is_held
    boots = zip(scene.boots, [*scene.boots[1:], None], strict=True)
    counts = [Counter(_client(scene, pod) for _, pod in _granted(scene, *boot)) for boot in boots]
    return {name: tuple(count[name] for count in counts) for name in names}


def _without_event(scene: Scene) -> tuple[str, ...]:
    """The exporter's pods that were evicted in this boot, without an Event that says so."""
    node = scene.sweep_node.node
    about = f"involvedObject.name={node.name},reason=DriverClientRestarted"
    messages = " ".join(event["message"] for event in node.api.list("/api/v1/events", fieldSelector=about))
    granted = _granted(scene, scene.boots[-1])
    return tuple(name for _, name in granted if _client(scene, name) == EXPORTER and name not in messages)


def _client(scene: Scene, pod: str) -> str:
    if not scene.path.has_clients:
        return ""
    if scene.holder is not None and pod in scene.holder.names:
        return HOLDER
    return EXPORTER if pod.startswith(scene.sweep_node.exporter.prefix) else ""


def _granted(scene: Scene, since: int, until: int | None = None) -> list[tuple[str, str]]:
    """Uid and name for each eviction that the server granted between two marks, even if the answer was lost.

    One that was cut off on its way counts for nothing: the next run is right to ask again.
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


Lost = Mapping[str, Sequence[str]]


def judge(wanted: Outcome, got: Outcome, *, edits: Mapping[str, str], uncovered: str, pods: frozenset[str]) -> Lost:
    """Compare with the undisturbed run. `edits` are an administrator's, who wins; `pods` may be evicted, by uid."""
    ours = {key: value for key, value in got.annotations.items() if key in JOURNALS}
    return {
        "lost labels": _differences({**wanted.labels, **edits}, got.labels),
        "lost cordons": ["the administrator's cordon is gone"] if wanted.is_cordoned and not got.is_cordoned else [],
        "leaked cordons": ["our cordon is still there"] if got.is_cordoned and not wanted.is_cordoned else [],
        "leftover journals": [f"{key} = {value}" for key, value in ours.items() if key not in wanted.annotations],
        "leftover annotations": _differences(_but(wanted.annotations, ours), _but(got.annotations, ours)),
        "wrong states": [] if got.shown == wanted.shown else [f"it shows {got.shown}, not {wanted.shown}"],
        "wrong drivers": _of_the_driver(wanted, got),
        "wrong evictions": _of_the_pods(wanted, got, pods),
        "wrong restarts": _of_the_clients(wanted, got),
        "wrong exit codes": [] if got.code == wanted.code else [f"{got.code}, not {wanted.code}"],
        "uncovered effects": [uncovered] if uncovered else [],
    }


def _but(values: Mapping[str, str], without: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if key not in without}


def _differences(wanted: Mapping[str, str], got: Mapping[str, str]) -> list[str]:
    return [
        f"{key} is {got.get(key)!r}, not {wanted.get(key)!r}"
        for key in sorted({*wanted, *got})
        if wanted.get(key) != got.get(key)
    ]


def _of_the_driver(wanted: Outcome, got: Outcome) -> list[str]:
    facts = ((wanted.modules, got.modules), (wanted.devices, got.devices), (wanted.files, got.files))
    found = [line for pair in facts for line in _differences(*pair)]
    found += [f"mounts: {got.mounts!r}"] if wanted.mounts != got.mounts else []
    found += [f"services: {got.services}, not {wanted.services}"] if wanted.services != got.services else []
    return found


def _of_the_pods(wanted: Outcome, got: Outcome, pods: frozenset[str]) -> list[str]:
    found = [f"pod {uid} was evicted {times} times" for uid, times in got.evicted.items() if times > 1]
    found += [f"pod {uid} was not to be evicted" for uid in got.evicted if uid not in pods]
    found += ["the bystander is not running"] if got.bystander != "Running" else []
    if wanted.jobs and wanted.jobs != got.jobs:
        found.append(f"pods are {got.jobs}, not {wanted.jobs}")
    return found


def _of_the_clients(wanted: Outcome, got: Outcome) -> list[str]:
    """Each as often as for an undisturbed run's driver; for the driver of an earlier boot, once at most."""
    found = [f"no Event tells of the restart of {name}" for name in got.without_event]
    for name, times in wanted.restarts.items():
        *earlier, now = got.restarts[name]
        found += [f"{name} was restarted {now} times, not {times[-1]}"] if now != times[-1] else []
        found += [f"{name} was restarted {count} times before the boot" for count in earlier if count > 1]
    return found


PATCH = "patch nodes"
EDIT = {EDITED: "false"}
SHARES = 9
"""A submission kills at one share of the points of every path. It is odd for the reason that `points` gives."""

T = TypeVar("T")


@dataclass(frozen=True)
class Recording:
    """One undisturbed run: its effects, what it left, and what is left when a reboot and another run follow it."""

    path: SweepPath
    effects: tuple[Effect, ...]
    at_the_end: Outcome
    after_a_boot: Outcome

    @property
    def kills(self) -> tuple[Kill, ...]:
        """Right before and right after every effect."""
        return tuple(Kill(effect, after) for effect in self.effects for after in (False, True))


@dataclass(frozen=True)
class Point:
    kill: Kill
    reboots: bool

    def __str__(self) -> str:
        return f"{self.kill}{', then a reboot' if self.reboots else ''}"


@dataclass(frozen=True)
class Judged:
    path: SweepPath
    point: Point
    lost: Lost
    interrupted: int

    def __str__(self) -> str:
        found = [f"{name}: {line}" for name, lines in self.lost.items() for line in lines]
        return "\n".join(f"{self.path}, {self.point}: {line}" for line in found)


def record(sweep_node: SweepNode, path: SweepPath) -> Recording:
    """Run the path undisturbed. AssertionError where it does not end as the path says."""
    with sweep_node.scene(path) as scene:
        run = scene.start()
        ended = run.end()
        assert ended.code == path.code, f"{path}: it ended with {ended.code}\n{ended.err}"
        effects, at_the_end = scene.effects(run), outcome(scene, ended.code)
        scene.reboot()
        return Recording(path, effects, at_the_end, after_a_boot(outcome(scene, scene.finished().code)))


def points(recording: Recording, share: Share) -> list[Point]:
    """The share of all kills; reboots follow each effect and precede the first.

    With an odd number of shares each of them has kills before effects, and kills after effects.
    """
    booted = [kill for kill in recording.kills if kill.after or kill.effect == recording.effects[0]]
    return share.of([Point(kill, False) for kill in recording.kills] + [Point(kill, True) for kill in booted])


def strike(recording: Recording, point: Point, sweep_node: SweepNode, mutant: str = "") -> Judged:
    """Kill a run at this point, run once more to the end, and judge what is there then."""
    with sweep_node.scene(recording.path, mutant=mutant) as scene:
        died = scene.killed(point.kill)
        gap = uncovered(recording.effects, scene.effects(died))
        if point.reboots:
            scene.reboot()
        sweep_node.node.set_labels(EDIT)
        got = outcome(scene, scene.finished().code)
        got = after_a_boot(got) if point.reboots else got
        wanted = _wanted(recording, point, got)
        lost = judge(wanted, got, edits=EDIT, uncovered=gap, pods=_may_go(scene))
        return Judged(recording.path, point, lost, got.interrupted)


def _wanted(recording: Recording, point: Point, got: Outcome) -> Outcome:
    if not point.reboots:
        return recording.at_the_end
    wanted = recording.after_a_boot
    # A boot may leave nothing to do: a Node that was never patched then shows nothing.
    is_silent = got.shown == NOTHING and not _was_patched(recording, point.kill)
    return replace(wanted, shown=NOTHING) if is_silent else wanted


def _was_patched(recording: Recording, kill: Kill) -> bool:
    first = next((place for place, one in enumerate(recording.effects) if one.name == PATCH), len(recording.effects))
    at = recording.effects.index(kill.effect)
    return at > first or (at == first and kill.after)


def _may_go(scene: Scene) -> frozenset[str]:
    return frozenset(job.uid for job in scene.jobs) if not scene.path.is_managed else frozenset()


def each(grounds: Sequence[SweepNode], work: Iterable[Callable[[SweepNode], T]]) -> list[T]:
    """The results in order, of several grounds at once. Raises what the first that failed raised."""
    free: SimpleQueue[SweepNode] = SimpleQueue()
    for sweep_node in grounds:
        free.put(sweep_node)

    def on_a_free_one(one: Callable[[SweepNode], T]) -> T:
        sweep_node = free.get()
        try:
            return one(sweep_node)
        finally:
            free.put(sweep_node)

    with ThreadPoolExecutor(len(grounds)) as pool:
        return list(pool.map(on_a_free_one, work))


@dataclass
class Figures:
    """Counts over all paths of one session, which kills at its share of the points."""

    share: Share = field(default_factory=Share)
    effects: dict[str, list[str]] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    terms_s: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, recording: Recording, judged: list[Judged], took_s: float) -> None:
        self.effects[str(recording.path)] = [str(effect) for effect in recording.effects]
        self.seconds += took_s
        for one in judged:
            self.kills["kills"] += 1
            self.kills["reboots"] += one.point.reboots
            self.kills["interrupted writes"] += one.interrupted
            for name, lines in one.lost.items():
                self.lost[name] += len(lines)

    def terminated(self, wait: str, took_s: float) -> None:
        self.terms_s[wait] = round(took_s, 3)

    def lines(self) -> list[str]:
        """What to say at the end of a session; nothing where nothing was swept."""
        lines = []
        if self.effects:
            count, paths = sum(map(len, self.effects.values())), len(self.effects)
            lines.append(
                f"share {self.share} of the kills: {count} effects on {paths} paths: killed {self.kills['kills']} "
                f"times, with a reboot after {self.kills['reboots']} of them, in {self.seconds:.0f} s"
            )
            lines.append(", ".join(f"{number} {name}" for name, number in self.lost.items()))
        if self.terms_s:
            lines.append(
                f"{len(self.terms_s)} waits ended by SIGTERM, the slowest in {max(self.terms_s.values()):.1f} s"
            )
        return lines
