"""docs/install.md on a real API server: its commands in their order, with kubectl, from a clone to an upgrade and back.

Where the page says `-k`, what `kubectl kustomize` makes of that folder is given by `-f`: the server here is older than
the kubectl that the page asks for. Logs are a kubelet's, which the node tier has.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from driver_manager.profiles import builtin
from driver_manager.sandbox.host_tree import HostTree
from tests.control_plane.api import Api, Json, gone, wait_until
from tests.control_plane.driver_node import DriverNode
from tests.control_plane.fixtures import skip_or_fail
from tests.control_plane.kubelet import NodeFactory, OperandsFactory
from tests.control_plane.pod_process import PodRunner, wait_pod
from tests.control_plane.processes import RUN_TIMEOUT_S
from tests.control_plane.runner import JOURNAL, NEW, NEW_DIGEST, PREFIX
from tests.control_plane.servers import NAMESPACE, ControlPlane
from tests.docs.console import commands
from tests.docs.markdown import DOCS, ROOT

pytestmark = pytest.mark.long

PAGE = DOCS / "install.md"
MANAGER, DRIVER = "k8s-driver-manager", "rebellions-driver"
DIGEST = "my-driver-2.0.1"
FOLDER = re.compile(r"-k (\S+)")
KINDS = "serviceaccounts,daemonsets,rolebindings,roles"


@dataclass(frozen=True)
class Clone:
    """A clone of the repository with the page's `mine` beside deploy/, and an administrator in it."""

    folder: Path
    env: dict[str, str]

    def digest(self, before: str, after: str) -> None:
        """Write another digest into the overlay."""
        path = self.folder / "mine/kustomization.yaml"
        assert before in path.read_text()
        path.write_text(path.read_text().replace(before, after))

    def types(self, line: str, **names: str) -> str:
        """Type one line of the page, which ends well; `names` are what its capital letters stand for."""
        for name, meant in names.items():
            line = re.sub(rf"\b{name}\b", meant, line)
        found = FOLDER.search(line)
        if found is not None:
            (self.folder / "made.yaml").write_text(self._run(f"kubectl kustomize {found[1]}"))
            line = line.replace(found[0], "-f made.yaml")
        return self._run(line)

    def _run(self, line: str) -> str:
        done = subprocess.run(
            ["bash", "--norc", "--noprofile", "-c", line],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def clone(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Clone]:
    """With the page's overlay of one's own; what is left of it is removed at the end."""
    if shutil.which("kubectl") is None:
        skip_or_fail("kubectl is not on PATH")
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    (folder / "mine").mkdir()
    (text,) = re.findall(r"```yaml\n# mine/kustomization.yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (folder / "mine/kustomization.yaml").write_text(text)
    config = str(control_plane.kubeconfig(control_plane.admin.token))
    made = Clone(folder, {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": config})
    yield made
    made.types("kubectl delete --ignore-not-found -k mine")


def said_in(section: str) -> tuple[str, ...]:
    """The commands below one heading of the page, up to the next heading."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    heads = [number for number, line in enumerate(lines, 1) if line.startswith("## ")]
    (begin,) = [number for number in heads if lines[number - 1] == f"## {section}"]
    end = next((number for number in heads if number > begin), len(lines) + 1)
    return tuple(one.text for one in commands(PAGE) if begin < one.line < end)


def test_no_command_of_the_page_is_left_out() -> None:
    sections = ("Install", "See that it works", "Uninstall")
    assert sum(map(said_in, sections), ()) == tuple(one.text for one in commands(PAGE))


def test_from_a_clone_to_an_upgraded_node_and_back_by_the_pages_commands(
    clone: Clone,
    control_plane: ControlPlane,
    containers: None,
    admin_api: Api,
    tmp_path: Path,
    node: NodeFactory,
    operands: OperandsFactory,
) -> None:
    read, space, apply, label = said_in("Install")
    pods, logs, events, notes = said_in("See that it works")
    look, uninstall = said_in("Uninstall")
    assert logs.startswith(f"kubectl -n {NAMESPACE} logs ds/{DRIVER} -c {MANAGER}"), "a kubelet's, and not run here"
    tree = HostTree(tmp_path / "host", tmp_path / "bin", builtin()["rebellions"])
    tree.build()
    there = node(boot_id=tree.boot_id)
    there.kubelet.start_by_hand(f"{DRIVER}-")
    operands(there, ("device-plugin",))

    assert "kind: DaemonSet" in clone.types(read)
    clone.types(space)
    clone.types(apply)
    clone.types(label, N=there.name)
    first = DriverNode(
        tree, there, PodRunner(control_plane, admin_api, tree, tmp_path), _driver_pod(admin_api, there.name)
    )
    assert first.runner.run(first.pod, MANAGER).code == 0
    first.install("2.0.1", DIGEST)
    there.kubelet.report_running(first.pod)
    assert re.search(rf"^{first.pod['metadata']['name']} .* {there.name} ", clone.types(pods), re.MULTILINE)
    assert there.name not in clone.types(events), "where nothing was loaded, nothing was to be done"
    assert JOURNAL not in clone.types(notes, N=there.name)

    clone.digest(DIGEST, NEW_DIGEST)
    clone.types(apply)
    clone.types(f"kubectl -n {NAMESPACE} delete pod --wait=false P", P=first.pod["metadata"]["name"])
    wait_until(
        lambda: _driver_pod(admin_api, there.name)["metadata"]["uid"] != first.pod["metadata"]["uid"], "the next"
    )
    second = DriverNode(tree, there, first.runner, _driver_pod(admin_api, there.name))
    ended = second.runner.run(second.pod, MANAGER)
    assert ended.code == 0, ended.err
    assert tree.driver_version == "not loaded", "its container loads the new one"
    second.install(NEW, NEW_DIGEST)
    assert there.labels()[f"{PREFIX}device-plugin"] == "true"
    assert there.name in clone.types(events)
    assert JOURNAL not in clone.types(notes, N=there.name)

    assert DRIVER in clone.types(look)
    clone.types(uninstall)
    left = partial(clone.types, f"kubectl -n {NAMESPACE} get {KINDS} -o name")
    wait_until(lambda: DRIVER not in left(), "nothing of it is left")
    gone(lambda: admin_api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{second.pod['metadata']['name']}", grace_s=0))
    assert admin_api.get(f"/api/v1/namespaces/{NAMESPACE}")["status"]["phase"] == "Active", "the namespace stays"


def _driver_pod(api: Api, name: str) -> Json:
    return wait_pod(api, name, DRIVER)
