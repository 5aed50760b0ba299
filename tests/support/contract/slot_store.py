"""What the SlotStore port promises, as one test class that runs on the sandbox's API server and on a real one."""

from __future__ import annotations

import uuid

import pytest

from driver_manager.adapters.kube.leases import LEASE, LeaseSlots
from driver_manager.domain.errors import ApiRefused, Conflict
from driver_manager.domain.reboot.state import SlotHolder, Slots
from tests.support.contract.cluster_port import Target
from tests.support.fakes.builders import ASCEND

KEYS = ASCEND.keys
VERSIONS = ("containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion")
PROGRESS = {KEYS.reboot_in_progress: "upgrade"}


def boot(target: Target, name: str, boot_id: str, *, ready: bool) -> SlotHolder:
    """The Node tells of a boot; the holder that it was in boot `before`."""
    condition = {"type": "Ready", "status": "True" if ready else "Unknown"}
    info = dict.fromkeys((*VERSIONS, "architecture", "machineID", "operatingSystem", "osImage", "systemUUID"), "x")
    body = {"status": {"nodeInfo": info | {"bootID": boot_id}, "conditions": [condition]}}
    node = target.api.patch(f"/api/v1/nodes/{name}/status", body)
    return SlotHolder(name, node["metadata"]["uid"], "before", 7)


class SlotContract:
    """Facts that hold on every API server."""

    def store(self, target: Target, *, refused: bool = False) -> LeaseSlots:
        namespace = f"slots-{uuid.uuid4().hex[:8]}"
        target.api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        return LeaseSlots(target.cluster("any", refused=refused).api, namespace, KEYS)

    def test_the_first_writer_makes_the_lease_and_who_leaves_last_leaves_no_holder(self, target: Target) -> None:
        store = self.store(target)
        seen = store.read(1)
        assert (seen.slots, seen.version, seen.problem) == (Slots(), "", "")
        taken = Slots((SlotHolder("node-b", "u1", "b", 7), SlotHolder("node-a", "u2", "b", 8)))
        store.write(taken, seen.version)
        assert store.read(9).slots == taken
        assert target.api.get(store._lease.path)["spec"]["holderIdentity"] == "node-a, node-b"
        store.write(Slots(), store.read(9).version)
        assert not target.api.get(store._lease.path)["spec"].get("holderIdentity")

    @pytest.mark.parametrize("change", ["begun", "written", "deleted"])
    def test_a_write_over_a_stale_version_is_a_conflict_and_changes_nothing(self, target: Target, change: str) -> None:
        store, version = self.store(target), ""
        if change != "begun":
            store.write(Slots(), "")
            version = store.read(1).version
        if change == "deleted":
            target.api.delete(store._lease.path)
        else:
            store.write(Slots((SlotHolder("a", "u1", "b"),)), version)
        with pytest.raises(Conflict):
            store.write(Slots((SlotHolder("b", "u2", "b"),)), version)
        assert [holder.uid for holder in store.read(9).slots.holders] == ([] if change == "deleted" else ["u1"])

    def test_a_holder_with_the_name_of_no_node_is_gone_but_looked_up_only_without_room(self, target: Target) -> None:
        store = self.store(target)
        names = ("no-such-node", "../../../api/v1/namespaces/default", "a/b", "?x=1", "%2e%2e")
        store.write(Slots(tuple(SlotHolder(name, name, "b") for name in names)), "")
        assert store.read(6).gone == frozenset()
        assert store.read(5).gone == {*names}

    def test_a_node_keeps_its_slot_until_it_is_ready_in_a_new_boot_with_nothing_under_way(self, target: Target) -> None:
        for boot_id, ready, notes, is_gone in (
            ("before", True, {}, False),
            ("before", False, {}, False),
            ("after", False, {}, False),
            ("after", True, PROGRESS, False),
            ("after", True, {}, True),
        ):
            store, name = self.store(target), target.make_node()
            holder = boot(target, name, boot_id, ready=ready)
            target.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": notes}})
            store.write(Slots((holder,)), "")
            assert store.read(1).gone == ({holder.uid} if is_gone else frozenset())

    def test_a_deleted_node_is_gone_and_so_is_one_of_the_same_name_with_another_uid(self, target: Target) -> None:
        store, name = self.store(target), target.make_node()
        holder = boot(target, name, "before", ready=False)
        store.write(Slots((holder,)), "")
        assert store.read(1).gone == frozenset()
        target.api.delete(f"/api/v1/nodes/{name}")
        assert store.read(1).gone == {holder.uid}
        target.api.post("/api/v1/nodes", {"metadata": {"name": name}})
        assert store.read(1).gone == {holder.uid}

    def test_what_cannot_be_read_is_a_problem_that_names_the_lease(self, target: Target) -> None:
        store = self.store(target)
        store.write(Slots(), "")
        target.api.patch(store._lease.path, {"metadata": {"annotations": {KEYS.reboot_slots: "garbage"}}})
        assert f"/{LEASE}" in store.read(1).problem

    def test_a_refusal_names_verb_and_resource(self, target: Target) -> None:
        store = self.store(target, refused=True)
        with pytest.raises(ApiRefused, match="get leases"):
            store.read(1)
        with pytest.raises(ApiRefused, match="create leases"):
            store.write(Slots(), "")
