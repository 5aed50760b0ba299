"""The commands of docs/operate.md that need a cluster, run on one as they are written."""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.control_plane.api import Json, gone
from tests.support.docs.console import commands
from tests.support.docs.markdown import DOCS
from tests.support.node.drivers import Drivers, waiting_run
from tests.support.node.machine import NAMESPACE, Machine
from tests.support.node.node_init import ADDRESS, NAME
from tests.support.node.place import wait_until

IMAGE = "driver-manager:0.1.0"


def documented(pattern: str) -> str:
    """The one command of the page that matches."""
    (found,) = {one.text for one in commands(DOCS / "operate.md") if re.search(pattern, one.text)}
    return found


def words_of(command: str, pod: str = "", debugger: str = "") -> list[str]:
    """The words after kubectl, with the values of the page's variables."""
    values = {"N": NAME, "NS": NAMESPACE, "P": pod, "D": debugger, "IMAGE": IMAGE}
    program, *words = shlex.split(re.sub(r"\$(\w+)", lambda found: values[found[1]], command))
    assert program == "kubectl"
    return [word for word in words if word != "-i"]


def test_status_in_the_container_of_a_run_that_waits(held: Drivers) -> None:
    waiting_run(held)
    command = documented(r"exec \$P -c k8s-driver-manager")
    done = held.machine.kubectl(*words_of(command, held.a_pod().name))
    assert done.returncode == 0, done.stderr
    assert "paused" in done.stdout
    assert held.a_pod().name in done.stdout


def test_status_in_the_sidecar_with_a_kubeconfig_through_a_pipe(drivers: Drivers) -> None:
    reading, _, executing = documented(r"exec -i \$P -c health-watch").partition(" | ")
    config = drivers.machine.kubectl(*words_of(reading))
    assert config.returncode == 0, config.stderr
    # From a pod the server has another address than from the node itself.
    given = config.stdout.replace("127.0.0.1", ADDRESS)
    words = words_of(executing, drivers.a_pod().name)
    done = drivers.machine.kubectl(words[0], words[1], "exec", "-i", *words[3:], given=given)
    assert done.returncode == 0, done.stderr
    assert drivers.version in done.stdout


@contextmanager
def debugging(machine: Machine, words: list[str]) -> Iterator[tuple[str, str]]:
    pod = debug_pod(machine, words)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}"
    try:
        yield pod, path
    finally:
        gone(lambda: machine.api.delete(path, grace_s=0))


@contextmanager
def debugger(drivers: Drivers) -> Iterator[tuple[str, str]]:
    """The name of a debug pod that runs, and the kubeconfig that the page pipes into it."""
    (starting,) = re.findall(r"kubectl .*sleep 1h", documented(r"debug node/\$N "))
    with debugging(drivers.machine, words_of(starting)) as (pod, path):
        wait_until(lambda: drivers.api.get(path)["status"]["phase"] == "Running", "the debug pod runs")
        reading = documented(r"^kubectl config view --raw .*exec -i \$D").partition(" | ")[0]
        yield pod, drivers.machine.kubectl(*words_of(reading)).stdout.replace("127.0.0.1", ADDRESS)


def test_status_in_a_debug_pod_with_a_kubeconfig_through_a_pipe(drivers: Drivers) -> None:
    with debugger(drivers) as (pod, given):
        executing = documented(r"^kubectl config view --raw .*exec -i \$D").partition(" | ")[2]
        words = words_of(executing, debugger=pod)
        done = drivers.machine.kubectl(words[0], words[1], "exec", "-i", *words[3:], given=given)
        assert done.returncode == 0, done.stderr
        assert drivers.version in done.stdout


def test_collect_in_a_debug_pod_has_the_logs_of_the_kubelet_and_no_key_of_the_kubeconfig(drivers: Drivers) -> None:
    with debugger(drivers) as (pod, given):
        command = f"driver-manager collect {NAME} --kubeconfig=/dev/stdin -f - | base64"
        done = drivers.machine.kubectl("-n", NAMESPACE, "exec", "-i", pod, "--", "sh", "-c", command, given=given)
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(done.stdout)), mode="r:gz") as tar:
        files = ((one.name.partition("/")[2], tar.extractfile(one)) for one in tar.getmembers())
        found = {name: file.read().decode() for name, file in files if file is not None}
    manifest, driver = json.loads(found["manifest.json"]), drivers.a_pod().name
    assert [one for one in manifest["notCollected"] if one["reason"] != "missing"] == [], done.stderr
    assert drivers.version in found["status.txt"]
    assert found[f"logs/{NAMESPACE}/{driver}/k8s-driver-manager.log"]
    assert f"logs/{NAMESPACE}/{driver}/health-watch.log" in found
    assert json.loads(found["versions.json"])["node"]["kubeletVersion"]
    assert [name for name in found if name.startswith("host/run/")]
    keys = re.findall(r"(?:key-data|token): (\S+)", given)
    assert keys
    assert [name for name, text in found.items() for key in keys if key in text] == []


def test_the_last_line_of_a_run_is_in_the_pods_status(held: Drivers) -> None:
    """`logs --previous` may be gone; the page names the field."""
    held.want(held.version, POD_TERMINATION_TIMEOUT="1s")
    pod = held.delete_pod(grace_s=0)
    command = documented(r"lastState")

    def message() -> str:
        found = held.pod()
        if found is None or found.uid == pod.uid:
            return ""
        return held.machine.kubectl(*words_of(command, found.name)).stdout

    last_line = wait_until(message, "a termination message", every_s=0.5)
    assert last_line.startswith("exit 3: "), last_line
    assert "gated" in last_line


def debug_pod(machine: Machine, words: list[str]) -> str:
    """The name of the pod that `kubectl debug` makes, or of the same one where this kubectl knows no profiles."""
    if "--profile" in machine.kubectl("debug", "--help").stdout:
        done = machine.kubectl(*words)
        assert done.returncode == 0, done.stderr
        (name,) = re.findall(r"node-debugger-\S+", done.stdout + done.stderr)
        return str(name)
    body = sysadmin_pod(words[words.index("--") + 1 :])
    return str(machine.api.post(f"/api/v1/namespaces/{NAMESPACE}/pods", body)["metadata"]["name"])


def sysadmin_pod(command: list[str]) -> Json:
    """What `kubectl debug node/… --profile=sysadmin` of 1.27 and later makes (kubectl/pkg/cmd/debug)."""
    container: Json = {"name": "debugger", "image": IMAGE, "command": command, "imagePullPolicy": "IfNotPresent"}
    container["securityContext"] = {"privileged": True}
    container["volumeMounts"] = [{"name": "host-root", "mountPath": "/host"}]
    spec: Json = {"nodeName": NAME, "hostNetwork": True, "hostPID": True, "hostIPC": True, "restartPolicy": "Never"}
    spec |= {"tolerations": [{"operator": "Exists"}], "containers": [container]}
    spec["volumes"] = [{"name": "host-root", "hostPath": {"path": "/"}}]
    return {"metadata": {"generateName": f"node-debugger-{NAME}-"}, "spec": spec}
