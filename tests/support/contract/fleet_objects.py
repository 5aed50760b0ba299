"""What a rollout relies on beside single Nodes and pods: ControllerRevisions, OnDelete, and a custom resource.

One class of tests: it runs on the sandbox's server with its DaemonSet controller, and on the real ones. A subclass
provides the fixture `ground`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from driver_manager.adapters.kube.fleet import as_daemon_set, as_revision
from driver_manager.cli.options import zone
from driver_manager.domain.fleet.spec import GROUP, KIND, PLURAL, VERSION, DaemonSetFacts, Revision, read
from driver_manager.domain.node import REVISION_LABEL
from tests.support.control_plane.api import STRATEGIC_PATCH, Api, Json, gone, status_of, wait_until


@dataclass(frozen=True)
class Ground:
    """A server, a namespace of it, and a label that one node has: its pods start and stop as a kubelet has them."""

    api: Api
    namespace: str
    label: dict[str, str]
    name: str = field(default_factory=lambda: f"driver-{uuid.uuid4().hex[:8]}")

    def path(self, plural: str, name: str = "") -> str:
        folder = {"pods": "/api/v1", PLURAL: f"/apis/{GROUP}/{VERSION}"}.get(plural, "/apis/apps/v1")
        return "/".join(filter(None, (f"{folder}/namespaces/{self.namespace}/{plural}", name)))

    def make_daemon_set(self, image: str) -> DaemonSetFacts:
        """The driver's DaemonSet on the node; its pod runs."""
        labels = {"app": self.name}
        containers = [{"name": "driver", "image": image}]
        spec = {"nodeSelector": self.label, "tolerations": [{"operator": "Exists"}], "containers": containers}
        template = {"metadata": {"labels": labels}, "spec": {**spec, "terminationGracePeriodSeconds": 1}}
        body = {"selector": {"matchLabels": labels}, "updateStrategy": {"type": "OnDelete"}, "template": template}
        self.api.post(self.path("daemonsets"), {"metadata": {"name": self.name}, "spec": body})
        wait_until(lambda: len(self.pods()) == 1, "a pod")
        return self.daemon_set()

    def set_image(self, image: str) -> None:
        """Another template; its controller has seen it."""
        template = self.api.get(self.path("daemonsets", self.name))["spec"]["template"]
        template["spec"]["containers"][0]["image"] = image
        self.api.patch(self.path("daemonsets", self.name), {"spec": {"template": template}})
        wait_until(lambda: self.daemon_set().is_current, "the template is observed")

    def daemon_set(self) -> DaemonSetFacts:
        return as_daemon_set(self.api.get(self.path("daemonsets", self.name)))

    def revisions(self) -> dict[str, Revision]:
        owner, found = self.daemon_set().uid, {}
        for one in self.api.list(self.path("controllerrevisions"), labelSelector=f"app={self.name}"):
            assert [ref["uid"] for ref in one["metadata"]["ownerReferences"] if ref.get("controller")] == [owner]
            found[one["data"]["spec"]["template"]["spec"]["containers"][0]["image"]] = as_revision(one)
        return found

    def pods(self) -> list[Json]:
        found = self.api.list(self.path("pods"), labelSelector=f"app={self.name}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def clear(self) -> None:
        gone(lambda: self.api.delete(self.path(PLURAL, self.name)))
        if not gone(lambda: self.api.delete(self.path("daemonsets", self.name))):
            wait_until(lambda: not self.pods(), "its pods are gone")


class FleetObjectsContract:
    """Facts that hold on every API server."""

    @pytest.fixture
    def site(self, ground: Ground) -> Iterator[Ground]:
        yield ground
        ground.clear()

    def test_a_template_is_a_revision_that_its_pods_name(self, site: Ground) -> None:
        found = site.make_daemon_set("driver:1")
        wait_until(lambda: site.daemon_set().is_current, "its controller has seen the template")
        assert (found.update_strategy, found.pods) == ("OnDelete", f"app={site.name}")
        (revision,) = site.revisions().values()
        assert (revision.number, revision.name) == (1, f"{site.name}-{revision.hash}")
        (pod,) = site.pods()
        assert pod["metadata"]["labels"][REVISION_LABEL] == revision.hash

    def test_a_pod_of_an_old_template_stays_until_it_is_deleted(self, site: Ground) -> None:
        site.make_daemon_set("driver:1")
        (old,) = site.pods()
        site.set_image("driver:2")
        revisions = wait_until(lambda: found if len(found := site.revisions()) == 2 else None, "two revisions")
        assert {image: one.number for image, one in revisions.items()} == {"driver:1": 1, "driver:2": 2}
        assert [pod["metadata"]["uid"] for pod in site.pods()] == [old["metadata"]["uid"]]
        site.api.delete(site.path("pods", old["metadata"]["name"]), uid=old["metadata"]["uid"])
        (new,) = wait_until(site.pods, "another pod")
        assert new["metadata"]["labels"][REVISION_LABEL] == revisions["driver:2"].hash
        assert new["metadata"]["uid"] != old["metadata"]["uid"]

    def test_a_template_that_comes_back_is_its_old_revision_with_the_highest_number(self, site: Ground) -> None:
        site.make_daemon_set("driver:1")
        first = site.revisions()["driver:1"]
        site.set_image("driver:2")
        wait_until(lambda: len(site.revisions()) == 2, "two revisions")
        site.set_image("driver:1")
        wait_until(lambda: site.revisions()["driver:1"].number == 3, "the first is the newest again")
        assert {image: one.number for image, one in site.revisions().items()} == {"driver:1": 3, "driver:2": 2}
        assert site.revisions()["driver:1"].hash == first.hash
        body = f'[{{"op": "replace", "path": "/spec/template", "value": {site.revisions()["driver:2"].template}}}]'
        site.api.patch(site.path("daemonsets", site.name), json.loads(body), "application/json-patch+json")
        wait_until(lambda: site.revisions()["driver:2"].number == 4, "a template as it was read from its revision")
        assert len(site.revisions()) == 2

    def test_a_rollout_has_a_status_apart_counts_its_specs_and_takes_no_strategic_patch(self, site: Ground) -> None:
        made = site.api.post(site.path(PLURAL), self.body(site) | {"status": {"phase": "Complete"}})
        assert ("status" in made, made["metadata"]["generation"]) == (False, 1)
        path = site.path(PLURAL, site.name)
        noted = site.api.patch(path, {"metadata": {"annotations": {"a": "b"}}, "status": {"phase": "Complete"}})
        assert ("status" in noted, noted["metadata"]["generation"]) == (False, 1)
        shown = site.api.patch(f"{path}/status", {"status": {"phase": "Paused"}, "spec": {"paused": True}})
        assert (shown["status"], shown["metadata"]["generation"]) == ({"phase": "Paused"}, 1)
        assert shown["spec"].get("paused", False) is False
        changed = site.api.patch(path, {"spec": {"paused": True}})
        assert (changed["status"], changed["metadata"]["generation"]) == ({"phase": "Paused"}, 2)
        assert status_of(lambda: site.api.patch(path, {"spec": {"paused": False}}, STRATEGIC_PATCH)) == 415
        (listed,) = (one for one in site.api.list(site.path(PLURAL)) if one["metadata"]["name"] == site.name)
        assert (listed["kind"], read(listed, zone).problems) == (KIND, ())

    def test_a_status_for_an_older_object_is_a_conflict_and_one_of_nothing_new_no_change(self, site: Ground) -> None:
        old = site.api.post(site.path(PLURAL), self.body(site))["metadata"]["resourceVersion"]
        path = f"{site.path(PLURAL, site.name)}/status"
        first = site.api.patch(path, {"metadata": {"resourceVersion": old}, "status": {"phase": "Paused"}})
        assert first["metadata"]["resourceVersion"] != old
        stale = {"metadata": {"resourceVersion": old}, "status": {"phase": "Complete"}}
        assert status_of(lambda: site.api.patch(path, stale)) == 409
        again = site.api.patch(path, {"status": {"phase": "Paused"}})
        assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]

    @staticmethod
    def body(site: Ground) -> Json:
        names = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": site.name}}
        return {**names, "spec": {"daemonSet": site.name}}
