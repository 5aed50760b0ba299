"""What the DaemonSet controller keeps of a template: one ControllerRevision for each that there ever was.

Owns the hash of a template, by which pods and revisions name it. As with the real controller, a template that comes
back is the old revision with a new number. Old revisions are never dropped.
Must not import anything but the standard library and the store.
"""

from __future__ import annotations

import hashlib
import json

from driver_manager.sandbox.store import Obj, Store

REVISION_LABEL = "controller-revision-hash"
_HASH_CHARS = 10


def hash_of(template: Obj) -> str:
    """The hash that pods made from this template carry."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:_HASH_CHARS]


def owned_by(daemonset: Obj) -> Obj:
    """The ownerReference of what this DaemonSet controls."""
    metadata = daemonset["metadata"]
    named = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": metadata["name"], "uid": metadata["uid"]}
    return {**named, "controller": True, "blockOwnerDeletion": True}


def observe(store: Store, daemonset: Obj, desired: int) -> None:
    """Let the present template be the newest revision, and the status say so and on how many nodes a pod is desired.

    Raises ApiError where the DaemonSet is gone.
    """
    metadata, template = daemonset["metadata"], daemonset["spec"]["template"]
    name, namespace = metadata["name"], metadata["namespace"]
    hashed = hash_of(template)
    listed, _ = store.list_objects("controllerrevisions", namespace=namespace)
    known = {one["metadata"]["name"]: one for one in listed if _is_of(one, metadata["uid"])}
    newest = max((one["revision"] for one in known.values()), default=0)
    wanted = f"{name}-{hashed}"
    if wanted not in known:
        labels = {**template.get("metadata", {}).get("labels", {}), REVISION_LABEL: hashed}
        place = {"name": wanted, "namespace": namespace, "labels": labels, "ownerReferences": [owned_by(daemonset)]}
        data = {"spec": {"template": {**template, "$patch": "replace"}}}
        store.create("controllerrevisions", {"metadata": place, "data": data, "revision": newest + 1})
    elif known[wanted]["revision"] < newest:
        store.patch("controllerrevisions", wanted, lambda one: {**one, "revision": newest + 1}, namespace=namespace)
    counted = {"observedGeneration": metadata["generation"], "desiredNumberScheduled": desired}
    store.patch(
        "daemonsets",
        name,
        lambda one: {**one, "status": {**one.get("status", {}), **counted}},
        namespace=namespace,
        status=True,
    )


def _is_of(revision: Obj, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in revision["metadata"].get("ownerReferences", []))
