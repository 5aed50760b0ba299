"""kubectl, as people have it, works against the sandbox's API server: in the shell that `sandbox --shell` opens."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.control_plane.fixtures import skip_or_fail

TIMEOUT_S = 900.0
MARK = "=== "
NODE, STATE = "sandbox-node", "rebellions.ai/npu-driver-manager.state"
TYPED = (
    f"kubectl get nodes -L {STATE}",
    f"kubectl get nodes -l '{STATE} in (held,failed)'",
    "kubectl get pods -A -o wide",
    "kubectl -n rbln-system get ds",
    f"kubectl describe node {NODE}",
    "kubectl -n rbln-system describe pod rbln-driver",
    "kubectl get events -A",
    f"kubectl cordon {NODE}",
    f"kubectl get node {NODE}",
    f"kubectl uncordon {NODE}",
    f"kubectl label node {NODE} team=a",
    f"kubectl annotate node {NODE} note=b",
    f"kubectl get node {NODE} -o jsonpath='{{.metadata.labels.team}} {{.metadata.annotations.note}}'",
    "kubectl -n rbln-system delete pod -l app=rbln-device-plugin",
    "kubectl -n rbln-system get pods -l app=rbln-device-plugin",
    "kubectl get pod no-such-pod",
    "driver-manager status",
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each command printed, in the shell after the scenario `upgrade`; its exit status is the last line."""
    if shutil.which("kubectl") is None:
        skip_or_fail("kubectl is not on PATH")
    home = tmp_path_factory.mktemp("home")
    script = "".join(f"echo '{MARK}{number}'\n{line} 2>&1\necho $?\n" for number, line in enumerate(TYPED))
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "SHELL": "/bin/sh", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, "-m", "driver_manager", "sandbox", "--shell"],
        input=script,
        env=env,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, *parts = re.split(rf"^{MARK}\d+\n", done.stdout, flags=re.MULTILINE)
    return {line: part.strip() for line, part in zip(TYPED, parts, strict=True)}


def answer(answers: dict[str, str], beginning: str) -> list[str]:
    """The lines of the one command that begins so, which ended well."""
    (found,) = [text for line, text in answers.items() if line.startswith(beginning)]
    *lines, status = found.splitlines()
    assert status == "0", found
    return lines


def cells(lines: list[str]) -> list[list[str]]:
    """A table of kubectl's, without its headings."""
    return [re.split(r" {2,}", line.rstrip()) for line in lines[1:]]


@pytest.mark.shares(6)
def test_get_nodes_shows_the_state_in_a_column(answers: dict[str, str]) -> None:
    heading, row = answer(answers, "kubectl get nodes -L")
    assert heading.split() == ["NAME", "STATUS", "ROLES", "AGE", "VERSION", "NPU-DRIVER-MANAGER.STATE"]
    assert row.split()[:3] == [NODE, "Ready", "<none>"]
    assert row.split()[-1] == "ready"
    assert answer(answers, "kubectl get nodes -l") == ["No resources found"]


def test_get_pods_shows_what_runs_and_the_init_container_that_does_not_end(answers: dict[str, str]) -> None:
    lines = answer(answers, "kubectl get pods -A")
    assert lines[0].split() == ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "NODE"]
    states = {row[1].rpartition("-")[0]: (row[2], row[3], row[6]) for row in cells(lines)}
    assert states.pop("rbln-driver") == ("0/1", "Init:0/1", NODE)
    assert set(states.values()) == {("1/1", "Running", NODE)}
    assert len(states) == 6
    sets = {row[0]: row[2] for row in cells(answer(answers, "kubectl -n rbln-system get ds"))}
    assert sets["rbln-driver"] == "rebellions.ai/npu.deploy.driver=true"


def test_describe_shows_the_node_with_its_pods_and_the_outcome_of_the_run(answers: dict[str, str]) -> None:
    text = "\n".join(answer(answers, "kubectl describe node"))
    assert re.search(rf"{re.escape(STATE)}=ready$", text, re.MULTILINE)
    assert re.search(r"^Unschedulable: +false$", text, re.MULTILINE)
    assert re.search(r"^Non-terminated Pods: +\(7 in total\)$", text, re.MULTILINE)
    assert re.search(r"^ +cpu +0 \(0%\)", text, re.MULTILINE)
    assert re.search(r"Normal +DriverReconciled .*driver 2\.0\.1", text)
    pod = "\n".join(answer(answers, "kubectl -n rbln-system describe pod"))
    assert re.search(r"^Controlled By: +DaemonSet/rbln-driver$", pod, re.MULTILINE)
    assert "k8s-driver-manager:" in pod
    events = answer(answers, "kubectl get events")
    assert [row[3:5] for row in cells(events)] == [["DriverReconciled", f"node/{NODE}"]]


def test_what_is_changed_with_it_is_changed(answers: dict[str, str]) -> None:
    assert answer(answers, "kubectl cordon") == [f"node/{NODE} cordoned"]
    cordoned = answers[f"kubectl get node {NODE}"]
    assert "Ready,SchedulingDisabled" in cordoned
    assert answer(answers, "kubectl uncordon") == [f"node/{NODE} uncordoned"]
    answer(answers, "kubectl label")
    answer(answers, "kubectl annotate")
    (line,) = [text for typed, text in answers.items() if "jsonpath" in typed]
    assert line == "a b0", "and its exit status"


def test_a_pod_that_is_deleted_is_made_again(answers: dict[str, str]) -> None:
    (said,) = answer(answers, "kubectl -n rbln-system delete pod")
    old = re.findall(r'"(rbln-device-plugin-\w+)"', said)
    new = [row[0] for row in cells(answer(answers, "kubectl -n rbln-system get pods"))]
    assert len(old) == len(new) == 1
    assert old != new


def test_what_is_not_there_is_an_error_in_the_servers_words(answers: dict[str, str]) -> None:
    text = answers["kubectl get pod no-such-pod"]
    assert text.splitlines() == ['Error from server (NotFound): pods "no-such-pod" not found', "1"]


def test_the_commands_see_what_kubectl_did(answers: dict[str, str]) -> None:
    assert answer(answers, "driver-manager status")[0].startswith("ready since ")
