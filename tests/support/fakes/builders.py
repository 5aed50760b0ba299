"""Facts for tests, with defaults that describe a loaded, current driver on a node with two operands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from driver_manager import profiles
from driver_manager.domain.errors import ManagerError, ModuleFailed
from driver_manager.domain.host import DriverSource, Host, Module, ModuleFile
from driver_manager.domain.journal import Journal, Owner
from driver_manager.domain.node import Node, Pod, PodList
from driver_manager.domain.observation import Observation, Situation
from driver_manager.domain.swap.retry_wait import failure_to_record

PROFILES = profiles.builtin()
PROFILE = PROFILES["rebellions"]
ASCEND = PROFILES["ascend"]
PAUSED = PROFILE.deploy.paused_value
NODE = "node-1"
OLD_DIGEST = "0" * 64
NEW_DIGEST = "f" * 64
ROOT_MOUNT = PROFILE.paths.driver_root
ME = Owner(pod="rbln-system/driver-a", pod_uid="driver-a")
SOMEBODY = Owner(pod="rbln-system/driver-b", pod_uid="driver-b")


def key(component: str) -> str:
    return PROFILE.deploy.prefix + component


PLUGIN, EXPORTER, DRIVER = key("device-plugin"), key("metrics-exporter"), PROFILE.deploy.driver_key
LABELS = {PLUGIN: "true", EXPORTER: "true", DRIVER: "true", "kubernetes.io/hostname": NODE}


def node(labels: dict[str, str] | None = None, **fields: Any) -> Node:
    known = {"name": NODE, "uid": "uid-1", "resource_version": "100", "boot_id": "boot-1", "machine_id": "machine"}
    return Node(labels=LABELS if labels is None else labels, **{**known, **fields})


def pod(name: str, *keys: str, **fields: Any) -> Pod:
    known = {"namespace": "rbln-system", "uid": name, "owner_kind": "DaemonSet", "have_ended": _have_ended(fields)}
    return Pod(name=name, selector_keys=frozenset(keys), **{**known, **fields})


def driver_pod(**fields: Any) -> Pod:
    return pod("driver-a", DRIVER, **fields)


def workload(name: str, **fields: Any) -> Pod:
    """A user's pod of a ReplicaSet that asks for one device."""
    known = {"namespace": "tenant", "uid": name, "owner_kind": "ReplicaSet", "resources": ("rebellions.ai/ATOM",)}
    return Pod(name=name, **{**known, "have_ended": _have_ended(fields), **fields})


def _have_ended(fields: Mapping[str, Any]) -> bool | None:
    """What a kubelet says of the containers of a pod that has ended."""
    return True if fields.get("phase") in ("Succeeded", "Failed") else None


def modules(version: str = "1.0", users: int = 0, **extra: Module) -> dict[str, Module]:
    """The driver as loaded: a root over one of its own, with `users` of the device."""
    return {
        "rebellions": Module("rebellions", version, users, ()),
        "rebellions_core": Module("rebellions_core", version, 1, ("rebellions",)),
        **extra,
    }


def source(root: str = "/opt/new", version: str = "2.0", **fields: Any) -> DriverSource:
    file = ModuleFile("rebellions", f"{root}/rebellions.ko", version, "6.1.0-fake SMP mod_unload")
    return DriverSource(root, (file,), **fields)


def host(**fields: Any) -> Host:
    known = {"boot_id": "boot-1", "kernel_release": "6.1.0-fake", "machine_id": "machine", "digest": OLD_DIGEST}
    return Host(**{**known, "modules": modules(), **fields})


def observation(**fields: Any) -> Observation:
    """The wanted digest is the new one; nothing is taken."""
    own = fields.pop("own_pod", driver_pod())
    pods = fields.pop("pods", (pod("plugin", PLUGIN), pod("exporter", EXPORTER)))
    known: dict[str, Any] = {"node": node(), "host": host(), "me": ME, "digest": NEW_DIGEST}
    listed = PodList((*pods, *([own] if own is not None else [])), "100")
    return Observation(**{**known, "pods": listed, "own_pod": own, **fields})


LONG_AFTER_S = 1_000_000.0


def failed_before(situation: Situation, error: ManagerError | None = None, **fields: Any) -> Situation:
    """The same after a run that wanted just this has disturbed a pod and failed a moment ago."""
    error = error or ModuleFailed("rmmod: no", "Look at dmesg.")
    past = failure_to_record(situation, error, situation.obs.at.monotonic_s)
    assert past is not None
    after = replace(situation.host, failure=replace(past, **fields))
    return replace(situation, host=after, obs=replace(situation.obs, host=after))


def journal(**fields: Any) -> Journal:
    return replace(Journal(ME, "boot-1", {PLUGIN: "true", EXPORTER: "true"}), **fields)
