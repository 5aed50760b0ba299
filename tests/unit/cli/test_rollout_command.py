"""`rollout controller` as a process on the sandbox: a whole rollout, its HTTP answers, the takeover, its options."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.fleet.spec import PLURAL
from driver_manager.sandbox.apiserver import ApiServer
from tests.support.deploy.prometheus import free_port
from tests.support.fakes.fleet_scene import NAMESPACE, FleetScene, Processes
from tests.support.fakes.pace import patient
from tests.support.fakes.typed import Prompt, get


@pytest.mark.submission
def test_a_rollout_by_the_real_command_its_http_answers_and_the_takeover_at_its_end(tmp_path: Path) -> None:
    scene = FleetScene()
    scene.set_driver("driver:1")
    scene.add_nodes("a", "b", "c")
    scene.add_rollout(waves=[{"name": "all"}], maxParallel=0)
    port = free_port()
    with ApiServer(scene.store) as server, contextlib.ExitStack() as stack:
        processes = Processes(server, scene, tmp_path)
        stack.callback(processes.stop)
        running = processes.start("--status-addr", f"127.0.0.1:{port}")
        processes.until(lambda: get(port, "/readyz") == (200, "leads\n"), "it is ready")
        processes.until(lambda: scene.phase() == "Complete", "the first revision")
        new = scene.set_driver("driver:2")
        processes.until(lambda: scene.is_complete(new), "the second one")
        assert {count for (_, revision), count in scene.restarts.items() if revision == new} == {1}
        assert (get(port, "/healthz")[0], get(port, "/other")[0]) == (200, 404)
        lines = {
            "driver_manager_rollout_leader 1.0",
            f'driver_manager_rollout_phase{{rollout="{NAMESPACE}/driver",phase="Complete"}} 1.0',
            f'driver_manager_rollout_nodes{{rollout="{NAMESPACE}/driver",place="done"}} 3.0',
            'driver_manager_rollout_acts_total{act="RestartPod"} 3.0',
        }
        processes.until(lambda: lines <= set(get(port, "/metrics")[1].splitlines()), "the metrics show it")
        server.store.delete(PLURAL, "driver", namespace=NAMESPACE)
        processes.until(lambda: "rollout_phase{" not in get(port, "/metrics")[1], "what is gone is in no metric")
        second = processes.start()
        processes.until(lambda: bool(second.lines), "the second is there")
        assert not any("leading" in line for line in second.lines)
        assert (running.terminate().code, running.lines[-1]) == (ExitCode.DONE, "terminated by SIGTERM")
        begun_s = time.monotonic()
        processes.until(lambda: any("leading" in line for line in second.lines), "the second leads")
        assert time.monotonic() - begun_s < patient(8.0), "without waiting for the Lease to run out"
        assert second.terminate().code == ExitCode.DONE
        assert processes.holder() == "", "the Lease is given back"


def test_unusable_settings_are_reported_at_once_and_the_group_alone_shows_its_commands(prompt: Prompt) -> None:
    for line, expected in {
        "controller": "no profile is set",
        "controller --profile none": "there is no profile 'none'",
        "controller --profile nvidia --namespace 'No Such'": "'No Such' is not the name of a namespace",
        "controller --profile nvidia --namespace n --kubeconfig /absent": "cannot connect to the cluster",
        "": "controller",
        "no-such": "No such command 'no-such'",
    }.items():
        assert expected in prompt.errors(f"rollout {line}")
