"""`upgrade NODE`: restart one node's driver pod with the newest template and follow its run, from a laptop."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
from msgspec import Struct

from driver_manager import profiles, schemas
from driver_manager.adapters.kube.api import KubeApi
from driver_manager.adapters.kube.fleet import KubeNodeDesk
from driver_manager.adapters.kube.objects import as_node, understood
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.cli.options import (
    Duration,
    command,
    document,
    in_form,
    output_option,
    put,
    styled,
    titled,
    with_options,
    zone,
)
from driver_manager.cli.session import connection, log_form, named_profile
from driver_manager.core.pods import allow_evictions
from driver_manager.core.ports_base import Reporter
from driver_manager.domain import settings
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import (
    EXIT_MEANINGS,
    ApiUnavailable,
    ConfigError,
    Conflict,
    EvictionRefused,
    ExitCode,
    ManagerError,
    PreflightFailed,
    Terminated,
    UpgradeUnended,
)
from driver_manager.domain.fleet.spec import Task, TaskPod
from driver_manager.domain.fleet.state import CLEAR_MORE_S, pod_of_person
from driver_manager.domain.fleet.upgrade import (
    NextStep,
    NodeBefore,
    NodeDriver,
    NodeScene,
    UpgradeEnd,
    current,
    judged,
    next_step,
    of_one_daemon_set,
)
from driver_manager.domain.journal import cleared_by
from driver_manager.domain.node import EvictionOutcome, Node
from driver_manager.domain.profile import Profile
from driver_manager.domain.settings import Values
from driver_manager.domain.text import spoken

Json = dict[str, Any]
T = TypeVar("T")

POLL_S = 1.0
REFUSED_S = 5.0
"""Seconds between two evictions of a pod whose eviction is refused, unless the server names more."""

ABSENT_S = 5.0
"""Seconds for which a node may be without a driver pod: between an eviction and the next pod."""

OPTIONS = (settings.ROLLOUT_NAMESPACE, *settings.LAPTOP)
WIDTH = 8


class NodeUpgrade(Struct):
    """The upgrade of one node by the pods of one DaemonSet; `end` is when waits end."""

    desk: KubeNodeDesk
    clock: SystemClock
    log: Reporter
    profile: Profile
    namespace: str
    daemon_set: str
    end: Deadline
    shown: str = ""

    def scene(self) -> NodeScene:
        """The facts now, once the DaemonSet's controller knows its newest template. Raises ManagerError."""
        while True:
            pods = self.asked(self.drivers)
            if not pods:
                self._wait("waits for the new driver pod")
                continue
            scene = self.asked(functools.partial(self.desk.scene, pods, self.profile.keys))
            if scene.daemon_set.is_current and scene.target:
                return scene
            self._wait("waits for the DaemonSet's controller to see the newest template")

    def drivers(self) -> tuple[NodeDriver, ...]:
        return tuple(one for one in self.desk.drivers(self.namespace) if one.daemon_set == self.daemon_set)

    def node(self) -> Node:
        return understood(as_node, self.desk.node())

    def asked(self, read: Callable[[], T]) -> T:
        """The answer of `read`, which is repeated while the API server gives none. Raises UpgradeUnended."""
        while True:
            try:
                return read()
            except ApiUnavailable as error:
                self._wait(f"{error.what}; trying again")

    def say(self, text: str) -> None:
        """Log `text` unless it was the last line."""
        if text != self.shown:
            self.shown = text
            self.log.info(f"node {self.desk.name}: {text}")

    def _wait(self, why: str, seconds: float = POLL_S) -> None:
        """Log why, and wait. Raises UpgradeUnended at the end of the time."""
        self.say(why)
        if self.end.is_over:
            raise UpgradeUnended(
                f"the upgrade of node {self.desk.name} did not end within {spoken(self.end.allowed_s)}: {why}",
                "A run that has begun continues; `--wait` follows it again, and --timeout gives it more time.",
            )
        self.clock.sleep(seconds)

    # Clear and evict

    @contextlib.contextmanager
    def cleared(self, scene: NodeScene, driver: NodeDriver) -> Iterator[UpgradeEnd | None]:
        """Within it, the node is cleared for the newest driver, as its container unloads the driver when it terminates.

        Gives the result if the node cannot be cleared. Deletes the pod that clears it; that pod then releases the node,
        unless the driver pod is gone.
        """
        if not self.profile.container_unloads:
            yield None
            return
        if not self.evict(driver, dry_run=True):  # what refuses it is found before users' pods have to leave
            yield None
            return
        limit_s = int(self.end.allowed_s) + CLEAR_MORE_S
        with self._pod_beside(driver, scene, Task.CLEAR, limit_s=limit_s) as name:
            pod, _ = self._until(name, "clears the node", self._is_cleared_by)
            if pod.exit_code == ExitCode.DONE or self._is_cleared_by(pod):
                yield None
            else:
                code = pod.exit_code if pod.exit_code is not None else int(ExitCode.PREFLIGHT_FAILED)
                yield UpgradeEnd(code, f"the node could not be cleared: {pod.message or f'exit {code}'}")
            while (left := self._task_pod(name)) is not None and not left.has_ended:
                self._wait(f"waits for driver pod {driver} to terminate")

    def _is_cleared_by(self, pod: TaskPod) -> bool:
        return cleared_by(self.asked(self.node).annotations.get(self.profile.keys.journal, "")) == pod.uid

    @contextlib.contextmanager
    def _pod_beside(self, driver: NodeDriver, scene: NodeScene, task: Task, **known: Any) -> Iterator[str]:
        """The name of a short-lived pod beside the driver pod. It is deleted at the end, also after Ctrl-C."""
        name = f"driver-manager-{task.value}-{os.urandom(5).hex()}"
        newest = next(one for one in scene.revisions if one.hash == scene.target)
        body = pod_of_person(driver.pod, name, newest, task, **known)
        try:
            self.desk.create_pod(self.namespace, body)
            yield name
        finally:
            with self.clock.shielded():
                try:
                    self.desk.delete_pod(self.namespace, name)
                except ManagerError as error:
                    self.log.warn(f"delete pod {self.namespace}/{name} by hand: {error.what}")

    def _until(
        self, name: str, doing: str, is_enough: Callable[[TaskPod], bool] = lambda _: False
    ) -> tuple[TaskPod, str]:
        """The short-lived pod once it has ended, or `is_enough`; why it last waited. Raises Conflict if it is gone."""
        why = ""
        while True:
            pod = self._task_pod(name)
            if pod is None:
                raise Conflict(f"pod {self.namespace}/{name}, which {doing}, was deleted", "Run it again.")
            why = pod.why_waiting or why
            if pod.exit_code is not None or pod.has_ended or is_enough(pod):
                return pod, why
            waits = f": {pod.why_waiting}" if pod.why_waiting else ""
            self._wait(f"waits for pod {self.namespace}/{name}, which {doing}{waits}")

    def _task_pod(self, name: str) -> TaskPod | None:
        return self.asked(lambda: self.desk.task_pod(self.namespace, name))

    def evict(self, driver: NodeDriver, *, dry_run: bool = False) -> bool:
        """Evict this pod; False if it was gone already. Raises EvictionRefused at the end of the time."""
        while True:
            answer = self.asked(lambda: self.desk.evict(driver.pod, dry_run=dry_run))
            if answer.outcome is not EvictionOutcome.BLOCKED:
                return answer.outcome is EvictionOutcome.ACCEPTED
            why = f"the eviction of driver pod {driver} is refused: {answer.why}"
            try:
                self._wait(f"{why}; trying again", max(REFUSED_S, answer.retry_after_s))
            except UpgradeUnended:
                what = f"{why} (for {spoken(self.end.allowed_s)})"
                raise EvictionRefused(what, f"{allow_evictions((answer.why,))}, or raise --timeout.") from None

    # Follow

    def follow(self, before: NodeBefore, old: tuple[NodeDriver, ...]) -> UpgradeEnd:
        """The result of the run on the pod after the `old` ones. Raises UpgradeUnended, Terminated, and ApiRefused.

        Raises Conflict if their DaemonSet is deleted: no pod comes.
        """
        seen, since_s = "", None
        while True:
            driver, node = current(self.asked(self.drivers)), self.asked(self.node)
            if driver is None:
                self.asked(functools.partial(self.desk.scene, old, self.profile.keys))
            uid = driver.pod.uid if driver is not None and driver.pod.uid != before.pod else ""
            if seen and uid and uid != seen:
                self.log.warn(f"the new driver pod was replaced by {driver}: following that")
            if uid != seen or driver is None or not driver.is_running:
                since_s = None
            seen, now_s = uid or seen, self.clock.monotonic()
            since_s = now_s if since_s is None else since_s
            found = judged(node, driver, before, self.profile.keys, now_s - since_s)
            if isinstance(found, UpgradeEnd):
                return found
            self._wait(found)

    # The plan, by a short-lived pod

    def plan(self, output: str) -> int:
        """Print the node's plan for the newest driver; the exit code of `plan`."""
        scene = self.scene()
        driver = current(scene.pods)
        if driver is None:
            raise Conflict(f"node {self.desk.name} has no driver pod now", "Run it again.")
        if not scene.node.is_ready:
            raise PreflightFailed(f"node {self.desk.name} is not Ready: no pod can start on it", "Check its kubelet.")
        with self._pod_beside(driver, scene, Task.PREFLIGHT, shows_plan="text" if output == "text" else "json") as name:
            pod, why = self._until(name, "makes the plan")
            if pod.exit_code not in EXIT_MEANINGS:  # also the code that a kubelet gives what never started
                raise UpgradeUnended(
                    f"the pod for the plan ended without a result: {'; '.join(filter(None, (why, pod.message)))}",
                    "Check that the image can be pulled and that the node has room for a pod.",
                )
            text = self.asked(lambda: self.desk.log(self.namespace, name))
        put(text.rstrip("\n") if output == "text" else _document(text, output))
        return int(pod.exit_code or 0)


def _document(log: str, output: str) -> str:
    """The JSON document in the log of a command, which also has lines of its stderr, in the form of `output`."""
    lines = log.splitlines()
    if "{" in lines and "}" in lines:
        text = "\n".join(lines[lines.index("{") : len(lines) - lines[::-1].index("}")])
        with contextlib.suppress(ValueError):
            return document(output, json.loads(text))
    return log


def open_upgrade(values: Values, name: str, timeout_s: float) -> NodeUpgrade:
    """Connect, read the node and its driver pods, and choose the profile. Raises ManagerError."""
    named, known = named_profile(values)
    clock = SystemClock()
    clock.install()
    log = log_form(values).reporter(clock.wall)
    api = KubeApi(connection(values), clock, log, settings.BY_HAND_API_TIMEOUT_S)
    desk, namespace = KubeNodeDesk(api, name, zone), values[settings.ROLLOUT_NAMESPACE]
    node, end = understood(as_node, desk.node()), Deadline.after(timeout_s, clock.monotonic)
    soon = end.within(ABSENT_S)
    while not desk.drivers(namespace) and not soon.is_over:
        clock.sleep(POLL_S)  # the DaemonSet's controller may be replacing it
    pods = of_one_daemon_set(name, desk.drivers(namespace), named.name if named is not None else "")
    profile = named or known.get(pods[0].profile) or profiles.pick(profiles.AUTO, known, node.labels)
    return NodeUpgrade(desk, clock, log, profile, pods[0].pod.namespace, pods[0].daemon_set, end)


class UpgradeReport(Struct):
    """What the command prints at its end. `result` is None if the command did not wait for the run."""

    node: str
    pods: tuple[NodeDriver, ...]
    target: str
    is_evicted: bool
    what: str
    result: UpgradeEnd | None = None

    def body(self) -> Json:
        """The JSON form, which `schemas/upgrade.schema.json` describes."""
        end, driver = self.result, self.pods[0]
        return {
            "schemaVersion": schemas.VERSION,
            "node": self.node,
            "daemonSet": f"{driver.pod.namespace}/{driver.daemon_set}",
            "revision": self.target,
            "evicted": self.is_evicted,
            "exitCode": end.code if end is not None else None,
            "what": end.what if end is not None else self.what,
            "remedy": end.remedy if end is not None else "",
            "version": end.version or None if end is not None else None,
            "window": end.window.to_json() if end is not None and end.window is not None else None,
        }

    def text(self, words: Json) -> str:
        end = self.result
        if end is None:
            return f"node {words['node']}: {words['what']}"
        word, colour = (f"exit {end.code}", "red") if end.code else ("upgraded", "green")
        outage = end.window.sentence() if end.window is not None else "the run reported none"
        parts = [
            ("result", [words["what"]]),
            ("outage", [outage]),
            ("driver", [words["version"]] if words["version"] else []),
            ("to do", [words["remedy"]] if words["remedy"] else []),
        ]
        return "\n".join([f"node {words['node']}: {styled(word, fg=colour, bold=True)}", *titled(parts, WIDTH)])


def run_upgrade(upgrade: NodeUpgrade, *, waits: bool) -> UpgradeReport:
    """Evict the driver pod if it is older than the template, and follow its run if wanted. Raises ManagerError."""
    name, is_evicted, before = upgrade.desk.name, False, None
    follow = f"`driver-manager upgrade {name} --wait` follows it"
    while True:
        scene = upgrade.scene()
        step, driver = next_step(scene), current(scene.pods)
        report = UpgradeReport(name, scene.pods, scene.target, is_evicted, "")
        if before is None:
            old = driver is not None and (step is NextStep.EVICT or driver.pod.is_deleting)
            uid = driver.pod.uid if driver is not None and old else ""
            before = NodeBefore.of(uid, upgrade.node(), upgrade.profile.keys)
        if step is NextStep.NOTHING or driver is None:
            report.what = "nothing newer: the driver pod has the newest template and is ready"
            return report
        if step is NextStep.EVICT:
            with upgrade.cleared(scene, driver) as failed:
                if failed is not None:
                    report.result = failed
                    return report
                if not upgrade.evict(driver):
                    continue  # another client replaced the pod meanwhile
            is_evicted = report.is_evicted = True
            upgrade.say(f"driver pod {driver} is evicted")
        report.what = "the driver pod is evicted" if is_evicted else "the driver pod is being replaced already"
        report.what += f", and the new one's run upgrades the node; {follow}"
        if waits:
            report.result = upgrade.follow(before, scene.pods)
        return report


@command("upgrade", "Upgrade the driver of one node, and follow it.")
@click.argument("node")
@click.option("--wait", "waits", is_flag=True, help="Follow the run, and end with its exit code.")
@click.option("--dry-run", is_flag=True, help="Print the node's plan, made by a short-lived pod on it; evict nothing.")
@click.option("--timeout", "timeout_s", type=Duration(), default="40m", show_default=True, help="Maximum time to wait.")
@output_option
@with_options(OPTIONS, settings.LOGGING)
def upgrade_command(  # noqa: PLR0913  # what click gives, by name
    *, node: str, waits: bool, dry_run: bool, timeout_s: float, output: str, values: Values
) -> int:
    """Evict the driver pod of NODE if its DaemonSet has a newer template; the new pod's run upgrades the node.

    With --wait, shows what the run does, then its result and the outage, and ends with its exit code; 9: reboot the
    node to complete the upgrade; 12: not ended within --timeout. Ctrl-C ends only the waiting. Ends with 0 where
    nothing is newer, and with 10 where a rollout, an operator or a label forbids it. Needs a kubeconfig with rights to
    get nodes and daemonsets, list pods, controllerrevisions and driverrollouts, and create pods/eviction. It also
    creates, gets and deletes a pod if the driver's container unloads the driver, and with --dry-run, to read its log.
    """
    if not timeout_s > 0:
        raise ConfigError(f"--timeout is {timeout_s:g} seconds", "Give --timeout a time above 0.")
    upgrade = open_upgrade(values, node, timeout_s)
    try:
        if dry_run:
            return upgrade.plan(output)
        report = run_upgrade(upgrade, waits=waits)
    except Terminated as ended:
        goes_on = f"A run that has begun continues; `driver-manager upgrade {node} --wait` follows it."
        raise Terminated(ended.what, "Nothing was changed." if dry_run else goes_on) from ended
    put(in_form(output, report.body(), report.text))
    return report.result.code if report.result is not None else ExitCode.DONE
