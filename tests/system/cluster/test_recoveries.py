"""Wedged chips of real health-watch processes, whose short-lived processes reset them, on a real API server."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from driver_manager.adapters.kube.leases import RECOVERY_LEASE
from driver_manager.domain.profile import RecoveryStep
from driver_manager.domain.recovery import LIMITS, RecoveryAttempt, RecoveryOutcome, decode_recovery_record
from driver_manager.profiles import builtin
from driver_manager.sandbox import fake_tools
from scripts.releasing.kustomize import only, render_with_namespace
from tests.support.control_plane.api import Api, Json, gone, wait_until
from tests.support.control_plane.kubelet import create_node
from tests.support.control_plane.processes import Running, running
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.runner import CommandRunner
from tests.support.control_plane.scene import EVENTS
from tests.support.control_plane.servers import ControlPlane
from tests.support.deploy.apply import applied
from tests.support.deploy.rights import BOUND_KINDS, user

PROFILE = builtin()["tenstorrent"]
KEYS, ROOT = PROFILE.keys, PROFILE.paths.driver_root
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{PROFILE.namespace}/leases/{RECOVERY_LEASE}"
RIGHTS = [one for one in render_with_namespace("tenstorrent", "recovery") if one["kind"] in BOUND_KINDS]
TOOL = """#!/bin/sh
if [ "$1" = -r ]; then
    echo >> {folder}/resets
    sleep 0.5
    while [ -e {folder}/gate ]; do sleep 0.05; done
fi
exec {folder}/tt-smi "$@"
"""
MOST_RESETS, _ = LIMITS[RecoveryStep.RESET]
"""In a boot."""

AUTOMATIC = {"AUTO_RECOVER": "reset"}


class Chip:
    """A node with one chip. Its reset waits while the gate is closed."""

    def __init__(self, runner: CommandRunner, folder: Path) -> None:
        self.runner, self.tree, self.node = runner, runner.tree, runner.node
        self._gate, self._resets = folder / "gate", folder / "resets"
        self.tree.serve(ROOT, "1.0", "digest")
        tool = self.tree.inside(ROOT) / "usr/local/bin/tt-smi"
        tool.rename(folder / "tt-smi")
        tool.write_text(TOOL.format(folder=folder))
        tool.chmod(0o755)

    def watch(self, **env: str) -> contextlib.AbstractContextManager[Running]:
        intervals = {"HEALTH_WATCH_INTERVAL": "100ms", "HEALTH_WATCH_TIMEOUT": "2s"}
        own = {"DRIVER_PROFILE": PROFILE.name, "DRIVER_ROOT": ROOT, "OPERATOR_NAMESPACE": PROFILE.namespace}
        return running("health-watch", self.runner.environment(**intervals, **own, **env), self.runner.new_last_line())

    def wedge(self) -> None:
        """From now on the chip is bad until its reset."""
        self.tree.wedge(fake_tools.RESET)

    def close_gate(self) -> None:
        self._gate.touch()

    def open_gate(self) -> None:
        self._gate.unlink()

    @property
    def resets(self) -> int:
        """How many were begun."""
        return self._resets.read_text().count("\n") if self._resets.exists() else 0

    @property
    def attempts(self) -> tuple[RecoveryAttempt, ...]:
        path = self.tree.root / PROFILE.paths.recovery_record.lstrip("/")
        return decode_recovery_record(path.read_text()).attempts if path.exists() else ()

    def shown(self) -> Json:
        """What the Node shows of the recovery."""
        found: Json = json.loads(self.node.annotations().get(KEYS.recovery, "{}"))
        return found

    def events(self, reason: str) -> list[str]:
        selector = f"involvedObject.name={self.node.name},reason={reason}"
        return [one["message"] for one in self.node.api.list(EVENTS, fieldSelector=selector)]

    def is_healed(self) -> bool:
        return bool(self.events("RecoverySucceeded"))

    def set_uptime(self, seconds: float) -> None:
        fresh = self.tree.root / "proc/uptime.fresh"
        fresh.write_text(f"{seconds:.2f} 0.00\n")
        fresh.rename(self.tree.root / "proc/uptime")

    def wait_healed(self) -> None:
        wait_until(self.is_healed, f"the Event of {self.node.name}")
        wait_until(lambda: not self.shown(), f"{self.node.name} shows no recovery any more")
        # A wedge whose report was killed may be over before the next report.
        wait_until(lambda: self.node.shown()[0] in ("ready", None), f"{self.node.name} shows no wedge any more")

    def assert_as_before(self, labels: dict[str, str]) -> None:
        assert self.node.labels() == labels
        assert not {KEYS.recovery, KEYS.approve_recovery} & self.node.annotations().keys()
        assert len(self.events("RecoverySucceeded")) == 1


Chips = Callable[[str], Chip]


@pytest.fixture
def chip(control_plane: ControlPlane, admin_api: Api, proxy: Proxy, tmp_path: Path) -> Iterator[Chips]:
    """Makes nodes, whose health-watch has the rights of deploy/ with the component."""
    with applied(admin_api, RIGHTS), contextlib.ExitStack() as stack:
        agent = user(admin_api, only(RIGHTS, "ServiceAccount"))
        gone(lambda: admin_api.delete(LEASE))

        def make(name: str) -> Chip:
            folder = tmp_path / name
            folder.mkdir()
            runner = CommandRunner(control_plane, agent, folder, PROFILE.name, proxy=proxy)
            runner.node = create_node(stack, admin_api, {}, boot_id=runner.tree.boot_id)
            return Chip(runner, folder)

        yield make


def slot_holders(api: Api) -> list[str]:
    """The nodes that hold the slot for a reset."""
    lease = next(iter(api.list(LEASE.rpartition("/")[0], fieldSelector=f"metadata.name={RECOVERY_LEASE}")), None)
    text = (lease or {"metadata": {}})["metadata"].get("annotations", {}).get(f"{KEYS.recovery_slots}.reset", "{}")
    return [one["node"] for one in json.loads(text).get("holders", [])]


@pytest.mark.shares(3)
def test_of_two_nodes_that_are_wedged_at_once_the_second_is_reset_after_the_first(chip: Chips, admin_api: Api) -> None:
    first, second = chip("first"), chip("second")
    labels = first.node.labels(), second.node.labels()
    first.close_gate()
    with first.watch(**AUTOMATIC) as watch, second.watch() as other:
        watch.says("→ healthy")
        other.says("→ healthy")
        first.wedge()
        wait_until(lambda: slot_holders(admin_api) == [first.node.name], "the first node holds the slot")
        second.wedge()
        wait_until(lambda: "waits for approval" in second.shown().get("reason", ""), "the second waits for approval")
        second.node.api.patch(second.node.path, {"metadata": {"annotations": {KEYS.approve_recovery: "reset"}}})
        holder = f"waits for the slot, which {first.node.name} holds"
        wait_until(lambda: second.shown().get("reason") == holder, "the second names the first")
        wait_until(lambda: first.resets, "the reset has begun")
        assert (second.resets, second.attempts) == (0, ())
        assert slot_holders(admin_api) == [first.node.name]
        assert second.node.annotations()[KEYS.approve_recovery] == "reset"
        first.open_gate()
        first.wait_healed()
        second.wait_healed()
    for one, before in zip((first, second), labels, strict=True):
        one.assert_as_before(before)
        assert (one.resets, [attempt.outcome for attempt in one.attempts]) == (1, [RecoveryOutcome.HEALED])
    assert second.attempts[0].at_s >= first.attempts[0].at_s
    assert slot_holders(admin_api) == []


@pytest.mark.shares(3)
@pytest.mark.parametrize("seed", range(3))
def test_a_recovery_whose_processes_are_killed_at_random_ends_as_an_undisturbed_one(
    chip: Chips, admin_api: Api, seed: int
) -> None:
    node, dice = chip("killed"), random.Random(seed)  # noqa: S311  # of a test
    labels, begun_s = node.node.labels(), time.monotonic()

    def is_healed() -> bool:
        # What a step is given to help is over sooner.
        node.set_uptime(4 * (time.monotonic() - begun_s))
        return node.is_healed()

    is_healed()
    with node.watch(**AUTOMATIC) as watch:
        watch.says("→ healthy")
        node.wedge()
        kills = 0
        while kills < 6 and len(node.attempts) < MOST_RESETS and not is_healed():
            # At least one is killed, as no process ends in its first tenth of a second.
            after_s = dice.uniform(0.0, 0.8 if kills else 0.1)
            kills += kill_task(watch, after_s, lambda: len(node.attempts) < MOST_RESETS)
        wait_until(is_healed, "the Event")
        node.wait_healed()
    assert kills
    node.assert_as_before(labels)
    # A process that was killed between the record and the end of the reset has used up an attempt.
    assert 1 <= node.resets <= len(node.attempts) <= MOST_RESETS
    assert node.attempts[-1].outcome is RecoveryOutcome.HEALED
    assert all(attempt.closed for attempt in node.attempts)
    assert slot_holders(admin_api) == []


def kill_task(watch: Running, after_s: float, may: Callable[[], bool]) -> bool:
    """SIGKILL a short-lived process of `watch` so long after it was seen; False if there was none for a second."""
    deadline_s = time.monotonic() + 1.0
    while time.monotonic() < deadline_s:
        for pid in Path(f"/proc/{watch.process.pid}/task/{watch.process.pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if b"health_watch_tasks" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    time.sleep(after_s)
                    if may():
                        os.kill(int(pid), signal.SIGKILL)
                        return True
        time.sleep(0.01)
    return False
