"""Takes one shipped right away from a service account, and makes its tokens. Must not import the product."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.control_plane.api import Api, Json, wait_until
from tests.support.control_plane.pod_process import request_token
from tests.support.control_plane.servers import User
from tests.support.deploy.apply import Right, apply, may, rights_of, rules_of

BOUND_KINDS = ("Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
"""What of an overlay is about rights."""


def shown(right: Right) -> str:
    _, group, resource, _, verb = right
    return f"{verb}-{resource}{f'.{group}' if group else ''}"


@contextmanager
def without(api: Api, objects: list[Json], account: Json, right: Right) -> Iterator[None]:
    _, group, resource, name, verb = right
    (role,) = [
        one
        for one in objects
        if one["kind"] in ("Role", "ClusterRole")
        and (group, resource, name, verb) in rules_of(one)
        and right in rights_of([one, *(other for other in objects if _binds(other, one))], account)
    ]
    less = copy.deepcopy(role)
    for rule in less["rules"]:
        if group in rule["apiGroups"] and resource in rule["resources"] and name in rule.get("resourceNames", [""]):
            rule["verbs"] = [known for known in rule["verbs"] if known != verb]
    less["rules"] = [rule for rule in less["rules"] if rule["verbs"]]
    apply(api, less)
    try:
        wait_until(lambda: not may(api, account, right), f"the server denies {shown(right)}")
        yield
    finally:
        apply(api, role)
        wait_until(lambda: may(api, account, right), f"the server grants {shown(right)} again")


def _binds(binding: Json, role: Json) -> bool:
    reference = binding.get("roleRef", {})
    return (reference.get("kind"), reference.get("name")) == (role["kind"], role["metadata"]["name"])


def user(api: Api, account: Json) -> User:
    namespace, name = account["metadata"]["namespace"], account["metadata"]["name"]
    return User(f"system:serviceaccount:{namespace}:{name}", (), request_token(api, namespace, name))
