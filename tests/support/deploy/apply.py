"""Server-side apply of rendered objects, which refuses fields that it does not know. Must not import the product."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from functools import partial

from tests.support.control_plane.api import Api, Json, gone, wait_until

APPLY_PATCH = "application/apply-patch+yaml"

_CLUSTER_WIDE = ("SecurityContextConstraints",)
"""Cluster-wide kinds that kustomize does not know as such: it gives them a namespace, which servers leave out."""

_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def path_of(one: Json) -> str:
    version, meta = one["apiVersion"], one["metadata"]
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    within = f"/namespaces/{meta['namespace']}" if "namespace" in meta and one["kind"] not in _CLUSTER_WIDE else ""
    plural = re.sub("ys$", "ies", f"{one['kind'].lower().removesuffix('s')}s")
    return f"{base}{within}/{plural}/{meta['name']}"


def apply(api: Api, one: Json) -> Json:
    """The object as the server has it then. ApiError for what it refuses, unknown fields among it."""
    params = {"fieldManager": "deploy-tests", "force": "true"}
    return api.request("PATCH", path_of(one), one, params=params, content_type=APPLY_PATCH)


@contextlib.contextmanager
def applied(api: Api, objects: Iterable[Json]) -> Iterator[list[Json]]:
    """Everything applied and its rights in force, until the context ends; namespaces stay, as nothing empties them."""
    wanted = list(objects)
    with contextlib.ExitStack() as stack:
        for one in wanted:
            if one["kind"] != "Namespace":
                stack.callback(gone, partial(api.delete, path_of(one)))
            apply(api, one)
        for account in (one for one in wanted if one["kind"] == "ServiceAccount"):
            for right in rights_of(wanted, account):
                wait_until(partial(may, api, account, right), f"{account['metadata']['name']}: {right}")
        yield wanted


Right = tuple[str, str, str, str, str]
"""Namespace ("" for all), group, resource with its subresource, name ("" for any), verb."""


def rights_of(objects: Iterable[Json], account: Json) -> list[Right]:
    """What the bindings among the objects give the service account."""
    known = list(objects)
    roles = {(one["kind"], one["metadata"]["name"]): one for one in known if one["kind"] in ("Role", "ClusterRole")}
    me = (account["metadata"]["namespace"], account["metadata"]["name"])
    found = []
    for binding in (one for one in known if one["kind"] in ("RoleBinding", "ClusterRoleBinding")):
        if me in [(subject["namespace"], subject["name"]) for subject in binding["subjects"]]:
            role = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
            found += [(binding["metadata"].get("namespace", ""), *rest) for rest in rules_of(role)]
    return found


def rules_of(role: Json) -> list[tuple[str, str, str, str]]:
    return [
        (group, resource, name, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    ]


def may(api: Api, account: Json, right: Right) -> bool:
    namespace, group, resource, name, verb = right
    plural, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": plural, "subresource": subresource, "name": name}
    attributes |= {"namespace": namespace}
    home = account["metadata"]["namespace"]
    user = f"system:serviceaccount:{home}:{account['metadata']['name']}"
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{home}", "system:authenticated"]
    review = {"spec": {"user": user, "groups": groups, "resourceAttributes": attributes}}
    return bool(api.post(_REVIEWS, review)["status"]["allowed"])
