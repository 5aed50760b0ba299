"""docs/install.md on a real kubelet: every command in its order, from a clone to a running overlay, upgrades, removal.

The page's own overlay is applied as it is printed. Substituted are N and P, the names of the node and of its driver
pod; the registry, which cannot be reached: the node has the images under the names that the overlay gives them; and the
driver's image, which is the reader's: `my-driver` is the sample driver under another name, and its modules are
stand-ins, as everywhere on this tier. The page's other commands are in `ELSEWHERE`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.support.docs.console import commands, commands_below, commands_in_passing, files
from tests.support.docs.markdown import DOCS
from tests.support.node import images
from tests.support.node.drivers import JOURNAL, MODULE, READY_MARKER, Drivers, stopping_after
from tests.support.node.images import Link
from tests.support.node.machine import NAMESPACE, Machine
from tests.support.node.node_init import NAME
from tests.support.node.place import wait_until
from tests.support.node.vendor_containers import Clone, Reader

pytestmark = pytest.mark.shares(6)
"""Together, as they share a node of their own."""

PAGE = DOCS / "install.md"
OVERLAY = "mine/kustomization.yaml"
OLD, NEW = images.TAGS
PLUGIN = "device-plugin"
NEXT_MANAGER = "0.1.1"
KINDS = "serviceaccounts,daemonsets,rolebindings,roles"

ELSEWHERE = {
    "scripts/image": "the image tier builds the image that runs here",
    "sha256sum --check": "for a release: tests/checks/test_release.py checks the sums",
    "kubectl apply --server-side -f rebellions": "for a release: test_release.py compares its files with deploy/",
    "kubectl apply -f rebellions-namespace.yaml": "the same file, before Helm",
    "helm ": "tests/system/cluster/test_deploy.py installs, upgrades and uninstalls the chart",
    "kubectl label namespace": "only after Helm's --create-namespace",
    "kubectl apply --server-side -f deploy/charts": "only before an upgrade by Helm",
    "kubectl annotate node N npu.openfuyao.com/approve-reboot": "Ascend's: test_rebooter_on_node.py",
    "kubectl create clusterrole": "from Kubernetes 1.30 on: tests/system/cluster/test_admission_policy.py has the verb",
    "kubectl -n rbln-system label pods": "for selectors of an earlier version: tests/system/cluster/test_pages.py",
    "kubectl -n rbln-system delete daemonset": "the same",
    "kubectl -n rbln-system delete --ignore-not-found": "the same",
}
"""Why a command of the page that is not in a console block is not run here, by how it begins."""


def named(image: str) -> str:
    overlay = yaml.safe_load(files(PAGE)[OVERLAY])
    (found,) = [one["newName"] for one in overlay["images"] if one["name"] == image]
    return str(found)


def laid() -> images.Laid:
    """The page's images: the manager's by two tags, the driver's in two versions, named as the overlay names them."""
    version = images.MANAGER.rpartition(":")[2]
    return replace(
        images.with_stand_ins(),
        kind="page",
        programs={"usr/local/bin/my-driver": Link("sample-driver")},
        managers=tuple(f"{named('driver-manager')}:{tag}" for tag in (version, NEXT_MANAGER)),
        driver=named("driver-manager-sample-driver"),
        tags={version: version for version in images.TAGS},
    )


@pytest.fixture(scope="module")
def node(able: None) -> Iterator[Machine]:
    """A cluster of its own: nothing of this project was ever in it."""
    with Machine(archives=lambda: [*images.tiny_archives(), images.driver_archive(laid())]) as running:
        yield running


@pytest.fixture
def clone(node: Machine, tmp_path: Path) -> Clone:
    """With the page's overlay beside deploy/."""
    made = Clone(node, tmp_path / "clone")
    (made.folder / "mine").mkdir()
    (made.folder / OVERLAY).write_text(files(PAGE)[OVERLAY])
    return made


class Installation:
    """What the reader of the page does, and what is to be seen of the driver then."""

    def __init__(self, clone: Clone) -> None:
        self.drivers = Drivers(clone.machine)
        self.drivers.version = OLD
        self._overlay = clone.folder / OVERLAY

    def edit(self, old: str, new: str) -> None:
        """Write something else into the overlay, wherever this was."""
        text = self._overlay.read_text()
        assert old in text
        self._overlay.write_text(text.replace(old, new))

    def plugin(self) -> str:
        """The uid of the operand's only pod that runs."""
        (found,) = self.drivers.running(PLUGIN)
        return str(found["metadata"]["uid"])

    def loaded(self) -> tuple[str, int]:
        """The version of the loaded driver, and which load of it this is."""
        return self.drivers.loaded(), (self.drivers.modules / MODULE).stat().st_ino

    def typed(self, types: Callable[..., str], begins: str, **names: str) -> str:
        """Type a command that waits until pods are gone, of which this kubelet leaves the objects for a while."""
        with ThreadPoolExecutor() as threads:
            typing = threads.submit(types, begins, **names)
            self.until(typing.done, f"the end of: {begins}")
            return typing.result()

    def until(self, check: Callable[[], object], what: str) -> None:
        """Until `check` holds; what hinders only by its object is removed."""

        def checked() -> object:
            self.drivers.remove_ended()
            return check()

        try:
            wait_until(checked, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.drivers.story()}") from error

    def replace_pod(self, types: Callable[..., str]) -> None:
        old = self.drivers.a_pod()
        self.typed(types, "kubectl -n rbln-system delete pod P", P=old.name)
        self.until(lambda: self.drivers.pod() not in (None, old), "the next pod")
        self.drivers.wait_serving()

    def check(self, types: Callable[..., str], state: str, *, has_event: bool) -> str:
        """See that it works, by the page: the Node shows `state`, and Events of it or none; how the run has ended."""
        pod = self.drivers.a_pod().name
        self.until(lambda: self._is_seen_running(pod), "the kubelet has reported that all containers run")
        pods = types("kubectl -n rbln-system get pods -o wide")
        assert re.search(rf"^{pod} +\d/2 +Running .* {NAME} ", pods, re.MULTILINE), pods
        log = types("kubectl -n rbln-system logs ds/")
        (node,) = [line for line in types("kubectl get nodes -L ").splitlines() if line.startswith(NAME)]
        assert node.split()[5:] == state.split(), node
        assert (NAME in types("kubectl -n default get events ")) is has_event
        assert JOURNAL not in types("kubectl get node N -o jsonpath=", N=NAME)
        last = types("kubectl -n rbln-system get pod P -o jsonpath=", P=pod)
        assert last == f"exit 0: {json.loads(log.splitlines()[-1])['message']}", log
        return last

    def _is_seen_running(self, pod: str) -> bool:
        status = self.drivers.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}")["status"]
        states = [one["state"] for one in status.get("containerStatuses", [])]
        return bool(states) and all("running" in state for state in states)


def test_from_a_clone_to_a_running_overlay_its_upgrades_and_its_removal_by_the_pages_commands(
    node: Machine, clone: Clone
) -> None:
    reader = Reader(clone.types, (one.text for one in commands(PAGE)))
    mine = Installation(clone)
    drivers, root = mine.drivers, node.namespaces.root

    # Install.
    assert "kind: DaemonSet" in reader.next("kubectl kustomize mine")
    reader.next("kubectl apply -k deploy/overlays/rebellions/namespace")
    reader.next("kubectl apply --server-side -k mine")
    assert drivers.pod() is None, "no node has the label"
    reader.next("kubectl label node N", N=NAME)
    drivers.wait_given_back()
    assert "no driver is loaded" in mine.check(reader.next, state="", has_event=False)

    # Upgrade the driver.
    drivers.add_operand(PLUGIN, stopping_after(0))
    plugin = mine.plugin()
    mine.edit(OLD, NEW)
    reader.next("kubectl apply --server-side -k mine")
    assert drivers.loaded() == OLD, "nothing happens before the pod is deleted"
    drivers.version = NEW
    mine.replace_pod(reader.next)
    assert "the driver was unloaded" in mine.check(reader.again, state="ready", has_event=True)
    assert mine.plugin() != plugin, "it has left for the upgrade, and is back"

    # Upgrade the manager: do the same with another image of it.
    plugin, loaded = mine.plugin(), mine.loaded()
    name = f"newName: {named('driver-manager')}\n"
    mine.edit(name, f"{name}    newTag: {NEXT_MANAGER}\n")
    reader.again("kubectl apply --server-side -k mine")
    mine.replace_pod(reader.again)
    mine.check(reader.again, state="ready", has_event=True)
    assert f"driver-manager:{NEXT_MANAGER}\n" in clone.types(f"kubectl -n {NAMESPACE} get pods -o yaml")
    assert (mine.plugin(), mine.loaded()) == (plugin, loaded), "the driver stays loaded, and no pod is disturbed"

    # Uninstall, by the page for that.
    assert reader.left() == [], "every command was typed"
    (uninstall,) = [line for line in commands_below(DOCS / "going-back.md", "Remove everything") if "-k mine" in line]
    clone.types(uninstall)
    mine.until(lambda: drivers.pod() is None, "the driver pod is gone")
    assert "rebellions" not in clone.types(f"kubectl -n {NAMESPACE} get {KINDS} -o name")
    assert node.api.get(f"/api/v1/namespaces/{NAMESPACE}")["status"]["phase"] == "Active", "the namespace stays"
    assert mine.plugin() == plugin, "with everything else in it"
    mine.typed(clone.types, "kubectl delete namespace rbln-system")
    assert mine.loaded() == loaded, "the driver stays loaded"
    assert (root / "run/rbln/rbln-driver.state").read_text() == f"my-driver-{NEW}\n"
    assert not (root / "run" / READY_MARKER).exists()
    assert (root / "var/lib/driver-manager").is_dir(), "which the page has the reader remove"


def test_every_other_command_of_the_page_is_named_with_the_reason_why_it_is_not_run() -> None:
    typed = {one.text for one in commands(PAGE)}
    others = [line for line in commands_in_passing(PAGE.read_text()) if line not in typed]
    assert [line for line in others if not line.startswith(tuple(ELSEWHERE))] == []
    assert [begins for begins in ELSEWHERE if not any(line.startswith(begins) for line in others)] == []
