"""docs/quickstart.md on a real kubelet: every command in its order, on a node without an accelerator.

Substituted are `kind`, whose cluster is the test's and whose images go into containerd as kind puts them; the node's
name; and `scripts/image`, which has built the image for this tier.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docs.console import commands, files
from tests.support.docs.markdown import DOCS
from tests.support.image import builder
from tests.support.node import images
from tests.support.node.machine import Machine
from tests.support.node.node_init import NAME, SERVICE_ADDRESS
from tests.support.node.place import CHECKOUT, wait_until
from tests.support.node.vendor_containers import Clone, Reader

pytestmark = pytest.mark.release

PAGE = DOCS / "quickstart.md"
OVERLAY = "mine/kustomization.yaml"


@pytest.fixture(scope="module")
def node(able: None) -> Iterator[Machine]:
    with Machine(archives=images.tiny_archives) as running:
        yield running


class Quickstart(Clone):
    """A reader's checkout, with the page's file. driver-manager reaches the server that has policy/v1."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        super().__init__(machine, folder)
        (folder / "mine").mkdir()
        (folder / OVERLAY).write_text(files(PAGE)[OVERLAY])
        (folder / ".venv").symlink_to(CHECKOUT / ".venv")
        self._configs = [machine.plane.kubeconfig("admin", *at) for at in ((), (f"https://{SERVICE_ADDRESS}:443",))]
        self._built = builder.built()

    def types(self, line: str, **names: str) -> str:
        words = shlex.split(line)
        match words[:2]:
            case ["scripts/image"] | ["kind", "create" | "delete"]:
                return ""
            case ["buildah", "push"]:
                words[2] = self._built.name
                return builder.checked(words, builder.BUILD_TIMEOUT_S, self.folder)
            case ["kind", "load"]:
                line = f"ctr -n k8s.io images import {words[-1]}"
        line = line.replace("kind-control-plane", NAME)
        config = f"KUBECONFIG={self._configs[words[0].endswith('driver-manager')]}"
        script = f"cd {self.folder} && {line}"
        done = self.machine.namespaces.run("env", config, "bash", "-c", script, timeout_s=300.0)
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}\n{self.story()}"
        return done.stdout

    def story(self) -> str:
        """What there is to see, for a command that failed."""
        lines = [self.machine.kubectl("get", "pods,events", "--all-namespaces").stdout]
        for log in sorted(self.machine.namespaces.root.glob("var/log/pods/*/*/*.log")):
            lines += [str(log), *log.read_text(errors="replace").splitlines()[-8:]]
        return "\n".join(lines)


def test_the_commands_of_the_quickstart_work_in_their_order(node: Machine, tmp_path: Path) -> None:
    reader = Reader(Quickstart(node, tmp_path / "clone").types, (one.text for one in commands(PAGE)))
    for begins in ("scripts/image", "buildah push", "kind create cluster", "kind load"):
        reader.next(begins)
    assert "release the node" in reader.next("kubectl run demo")

    for begins in ("apply -k", "apply --server-side", "label node"):
        reader.next(f"kubectl {begins}")
    wait_until(lambda: node.api.list("/api/v1/namespaces/rbln-system/pods"), "the driver pod is there")
    reader.next("kubectl -n rbln-system wait")
    assert "no driver is loaded" in reader.next("kubectl -n rbln-system logs")
    assert f"{NAME}  rebellions  unknown" in reader.next(".venv/bin/driver-manager status --all")

    reader.next("sed -i")
    reader.next("kubectl apply --server-side")
    assert "nothing to do" in reader.next(".venv/bin/driver-manager upgrade")
    assert f"node {NAME}: upgraded" in reader.next(".venv/bin/driver-manager upgrade")
    reader.next("kind delete cluster")
    reader.next("rm -rf")
    assert reader.left() == []
