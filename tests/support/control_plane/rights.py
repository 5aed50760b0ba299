"""Owns the agents' rights: rules as the operators and the README give them, and how they come into force."""

from __future__ import annotations

from tests.support.control_plane.api import Api, Json, wait_until
from tests.support.control_plane.servers import User

# The rights the operator's first generation gives its driver pods, to the letter.
GENERATION_1 = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch", "update"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"]},
]


# With claims, which the second generation's manager reads to find the pods that hold a device.
WORKLOADS = [
    *GENERATION_1,
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get", "list"]},
]


# The rights that the README gives the rebooter, without those for evicting.
REBOOTER = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "patch"]},
]


# What deploy/components/rollout gives the controller, over all namespaces.
ROLLOUT = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "create", "delete"]},
    {
        "apiGroups": ["driver-manager.rebellions.ai"],
        "resources": ["driverrollouts"],
        "verbs": ["list", "watch"],
    },
    {"apiGroups": ["driver-manager.rebellions.ai"], "resources": ["driverrollouts/status"], "verbs": ["patch"]},
    {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["list", "watch", "patch"]},
    {"apiGroups": ["apps"], "resources": ["controllerrevisions"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "patch"]},
]


READ_ONLY = [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list"]}]


EVENTS = [{"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]}]


def bind_rights(api: Api, user: User, rules: list[Json]) -> None:
    """Bind a ClusterRole of these rules to the service account, and wait until the authorizer knows it."""
    _, _, namespace, account = user.name.split(":")
    subject = {"kind": "ServiceAccount", "namespace": namespace, "name": account}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account}
    base = "/apis/rbac.authorization.k8s.io/v1"
    api.post(f"{base}/clusterroles", {"metadata": {"name": account}, "rules": rules})
    api.post(f"{base}/clusterrolebindings", {"metadata": {"name": account}, "roleRef": role, "subjects": [subject]})
    last = rules[-1]
    attributes = {"verb": last["verbs"][-1], "group": last["apiGroups"][0], "resource": last["resources"][0]}
    review = {"spec": {"user": user.name, "groups": list(user.groups), "resourceAttributes": attributes}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    wait_until(lambda: api.post(path, review)["status"]["allowed"], f"the rights of {user.name}")
