"""Calls to the sandbox's API server as plain HTTP, and the objects that tests put there."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from driver_manager.sandbox.apiserver import ApiServer, Obj, Store

TOKENS = {"admin-token": "admin", "manager-token": "manager"}


PODS = "/api/v1/namespaces/ns/pods"


MERGE = "application/merge-patch+json"


LIMIT_S = 25.0


def call(
    server: ApiServer,
    method: str,
    path: str,
    body: Any = None,
    *,
    content_type: str = "application/json",
    token: str = next(iter(TOKENS)),
) -> tuple[int, Obj]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=LIMIT_S)
    with contextlib.closing(connection):
        headers = {"Authorization": f"Bearer {token}", "Content-Type": content_type}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


@contextlib.contextmanager
def watch(server: ApiServer, path: str, **options: object) -> Iterator[Iterator[Obj]]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=LIMIT_S)
    query = "&".join(f"{name}={quote(str(value))}" for name, value in options.items())
    with contextlib.closing(connection):
        connection.request("GET", f"{path}?watch=true&{query}", headers={"Authorization": "Bearer admin-token"})
        response = connection.getresponse()
        assert response.status == 200
        yield (json.loads(line) for line in iter(response.readline, b""))


def node(name: str = "n1", **labels: str) -> Obj:
    return {"metadata": {"name": name, "labels": labels}}


def pod(name: str = "p", node_name: str = "n1", **metadata: Any) -> Obj:
    return {"metadata": {"name": name, "namespace": "ns", **metadata}, "spec": {"nodeName": node_name}}


def daemonset(**selector: str) -> Obj:
    template = {"metadata": {"labels": {"app": "plugin"}}, "spec": {"nodeSelector": selector, "containers": []}}
    return {"metadata": {"name": "plugin", "namespace": "ns"}, "spec": {"template": template}}


def until(store: Store, is_so: Callable[[], object]) -> None:
    with store.changed:
        assert store.changed.wait_for(is_so, LIMIT_S)


def pods_of(store: Store) -> list[Obj]:
    return store.list_objects("pods")[0]


def label_patch(**labels: str | None) -> Obj:
    return {"metadata": {"labels": labels}}
