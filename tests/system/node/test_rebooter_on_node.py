"""The rebooter as deploy/ has it, up to its command: it gets into the host, and takes a refusal for one."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.releasing.kustomize import only, render_with_namespace
from tests.support.control_plane.api import Json, gone
from tests.support.deploy.apply import apply, path_of
from tests.support.node.machine import Machine
from tests.support.node.measured import Action, Table
from tests.support.node.place import wait_until

DOMAIN = "npu.openfuyao.com"
APPROVAL = f"{DOMAIN}/approve-reboot"
KINDS = ("mnt", "pid", "net", "ipc", "uts")
SYSTEMCTL = """\
#!/bin/sh
echo "$* $(for kind in mnt pid net ipc uts; do readlink /proc/self/ns/$kind; done | tr '\\n' ' ')" >>/run/reboot-asked
[ ! -e /run/inhibited ] || { echo "Operation inhibited by the test" >&2; exit 1; }
"""
SETTINGS = {"REBOOT_MIN_UPTIME": "0s", "REBOOTER_INTERVAL": "1s", "REBOOT_GRACE": "10m"}
"""Of the tests: the machine may have booted a minute ago, and no test waits half a minute between two rounds."""


class Rebooter:
    """The rebooter's DaemonSet of deploy/overlays/ascend, and the host that it is to reboot."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.api = machine, machine.api
        self.root = machine.namespaces.root
        self.objects = [
            one
            for one in render_with_namespace("ascend")
            if one["kind"] == "Namespace" or one["metadata"]["name"].startswith("ascend-driver-rebooter")
        ]
        self.set = only(self.objects, "DaemonSet", "ascend-driver-rebooter")
        (container,) = self.set["spec"]["template"]["spec"]["containers"]
        container["env"] += [{"name": name, "value": value} for name, value in SETTINGS.items()]
        program = self.root / "usr/local/sbin/systemctl"
        program.write_text(SYSTEMCTL)
        program.chmod(0o755)

    def apply(self, *, host_pid: bool = True) -> None:
        """Apply everything; without `host_pid` as deploy/ once was."""
        wanted = copy.deepcopy(self.set)
        if not host_pid:
            del wanted["spec"]["template"]["spec"]["hostPID"]
        for one in (*(one for one in self.objects if one is not self.set), wanted):
            apply(self.api, one)

    def remove(self) -> None:
        gone(lambda: self.api.delete(path_of(self.set)))
        pods = "/api/v1/namespaces/npu-operator/pods"
        wait_until(lambda: not self.api.list(pods), "the rebooter's pod is gone")

    def annotate(self, value: str | None) -> None:
        """Approve, or take the approval back."""
        self.api.patch(self.machine.kubelet.path, {"metadata": {"annotations": {APPROVAL: value}}})

    def notes(self) -> Json:
        """The Node's annotations of this domain."""
        found = self.machine.kubelet.node()["metadata"].get("annotations", {})
        return {key: value for key, value in found.items() if key.startswith(DOMAIN)}

    def request(self) -> None:
        """Ask for a reboot, as an older operator does."""
        (self.root / "var/lib/ascend").mkdir(exist_ok=True)
        (self.root / "var/lib/ascend/.reboot-required").write_text("driver upgrade\n")

    def record(self) -> Json:
        path = self.root / "var/lib/ascend/.rebooter.json"
        found: Json = json.loads(path.read_text()) if path.exists() else {}
        return found

    def wait_logged(self, text: str) -> None:
        """Wait until the rebooter's last word has this in it. AssertionError with what it wrote."""
        try:
            wait_until(lambda: text in self.record().get("said", ""), f"the rebooter says {text!r}")
        except AssertionError as error:
            words = ("logs", "-n", "npu-operator", "-l", "app.kubernetes.io/name=driver-rebooter", "--tail=30")
            raise AssertionError(f"{error}\n{self.record()}\n{self.machine.kubectl(*words).stdout}") from error

    def asked(self) -> list[str]:
        path = self.root / "run/reboot-asked"
        return path.read_text().splitlines() if path.exists() else []

    def inhibit(self, *, on: bool) -> None:
        """Whether the host refuses."""
        path: Path = self.root / "run/inhibited"
        path.touch() if on else path.unlink(missing_ok=True)

    def of_first_process(self) -> str:
        """The namespaces of the node's first process, as `asked` has them."""
        folder = Path(f"/proc/{self.machine.namespaces.pid}/ns")
        return " ".join(str((folder / kind).readlink()) for kind in KINDS)


@pytest.fixture
def rebooter(machine: Machine) -> Iterator[Rebooter]:
    made = Rebooter(machine)
    label = {"metadata": {"labels": {"openfuyao.com/npu.present": "true"}}}
    machine.api.patch(machine.kubelet.path, label)
    yield made
    made.remove()


@pytest.mark.shares(6)
def test_the_command_runs_among_the_hosts_namespaces_and_a_refusal_is_one(rebooter: Rebooter, table: Table) -> None:
    rebooter.apply(host_pid=False)
    rebooter.request()
    rebooter.wait_logged("waits for approval")
    rebooter.annotate("true")
    rebooter.wait_logged("namespaces cannot be entered")
    assert rebooter.notes()[APPROVAL] == "true"
    assert rebooter.asked() == []

    with table.row(Action.REBOOTER) as row:
        rebooter.inhibit(on=True)
        rebooter.apply()
        wait_until(lambda: len(rebooter.asked()) >= 2, "the host is asked again")
        rebooter.wait_logged("refuses to reboot: Operation inhibited by the test")
        assert rebooter.record()["pending"]["forced"] is None
        assert APPROVAL not in rebooter.notes()
        rebooter.inhibit(on=False)
        rebooter.wait_logged("the reboot command was given")
        row.end = "reboot command taken, in all namespaces of pid 1"
    command = rebooter.asked()[-1].split(" ", 1)
    assert command[0] == "reboot"
    assert command[1].strip() == rebooter.of_first_process()
    assert "sysrq" not in rebooter.record()["said"]
