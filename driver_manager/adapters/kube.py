"""The Cluster port on a real API server, for one Node.

Uses the kubernetes client for what it is good at (kubeconfig, in-cluster credentials and their renewal, TLS, proxies)
and sends its own few requests through the client's connection pool, as plain JSON.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import tenacity
import urllib3
from kubernetes import client as kube_client
from kubernetes import config as kube_config
from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError, ReadTimeoutError

from driver_manager.adapters.kube_objects import as_node, as_pod
from driver_manager.domain.errors import (
    ApiRefused,
    ApiUnavailable,
    ConfigError,
    Conflict,
    ManagerError,
    NodeMissing,
    WatchBroken,
    WatchExpired,
)
from driver_manager.domain.model import Node, NodeChange, PodEvent, PodEventKind, PodList
from driver_manager.ports import Clock, Reporter

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
REQUEST_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 5.0
WATCH_SILENCE_S = 90.0
"""Servers send bookmarks about once a minute; a stream silent for longer is taken for dead."""

_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_POD_EVENTS = {
    "ADDED": PodEventKind.PRESENT,
    "MODIFIED": PodEventKind.PRESENT,
    "DELETED": PodEventKind.GONE,
}
_JSON_MERGE = "application/merge-patch+json"


T = TypeVar("T")


class _Transient(Exception):
    """An answer, or the lack of one, that may be different next time."""

    def __init__(self, what: str, retry_after_s: float = 0.0) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s


def load_client(kubeconfig: str | None) -> Any:
    """A configured kubernetes ApiClient: `kubeconfig` if given, else in-cluster, else ~/.kube/config.

    Raises ConfigError when there is none or it cannot be used.
    """
    configuration = kube_client.Configuration()
    try:
        if kubeconfig:
            kube_config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
        elif SERVICE_ACCOUNT.exists():
            kube_config.load_incluster_config(client_configuration=configuration)
        else:
            kube_config.load_kube_config(client_configuration=configuration)
    except Exception as error:  # the client lets through what its YAML, base64 and TLS readers raise
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"no usable way to the cluster{f' in {kubeconfig}' if kubeconfig else ''}: {said}",
            "Set KUBECONFIG (or --kubeconfig) to a valid file, or run in a pod with a service account.",
        ) from error
    configuration.retries = False
    return kube_client.ApiClient(configuration)


class KubeCluster:
    """See `driver_manager.ports.Cluster`."""

    def __init__(self, api: Any, node_name: str, clock: Clock, reporter: Reporter, retry_budget_s: float) -> None:
        self._api = api
        self._node_name = node_name
        self._clock = clock
        self._reporter = reporter
        self._retry_budget_s = retry_budget_s
        self._read_timeout_s = REQUEST_TIMEOUT_S

    def limit_retries(self, budget_s: float) -> None:
        """See the port."""
        self._retry_budget_s = min(self._retry_budget_s, budget_s)
        self._read_timeout_s = min(self._read_timeout_s, budget_s)

    def node(self) -> Node:
        """See the port."""
        return _understood(as_node, self._call("GET", self._node_path, "get nodes"))

    def pods(self) -> PodList:
        """See the port."""
        body = self._call("GET", "/api/v1/pods?" + urlencode(self._on_node), "list pods")
        return _understood(_as_pod_list, body)

    def patch_node(self, change: NodeChange, resource_version: str | None) -> Node:
        """See the port."""
        metadata: dict[str, Any] = {"labels": dict(change.labels), "annotations": dict(change.annotations)}
        metadata = {key: value for key, value in metadata.items() if value}
        if resource_version is not None:
            metadata["resourceVersion"] = resource_version
        body: dict[str, Any] = {"metadata": metadata}
        if change.unschedulable is not None:
            # null rather than false: an uncordoned Node carries no such field.
            body["spec"] = {"unschedulable": True if change.unschedulable else None}
        return _understood(as_node, self._call("PATCH", self._node_path, "patch nodes", body, _JSON_MERGE))

    def refused(self, rights: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """See the port."""
        return tuple(right for right in rights if not self._may(*right))

    def post_event(self, reason: str, message: str, *, warning: bool) -> None:
        """See the port."""
        body = _event(self._node_name, reason, message, self._clock.wall(), warning=warning)
        try:
            self._once("POST", "/api/v1/namespaces/default/events", "create events", body, "application/json")
        except (ManagerError, _Transient) as error:
            self._reporter.warn(f"no event was recorded: {error}")

    def watch_pods(self, resource_version: str, timeout_s: float) -> Generator[PodEvent, None, None]:
        """See the port."""
        query = {
            **self._on_node,
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(timeout_s))),
        }
        path = "/api/v1/pods?" + urlencode(query)
        silence_s = min(WATCH_SILENCE_S, timeout_s + 1.0)
        response = self._retrying(lambda: self._open(path, silence_s))
        try:
            for line in self._lines(response):
                event = _as_event(line)
                if event is not None:
                    yield event
        finally:
            response.close()

    def _may(self, verb: str, resource: str) -> bool:
        name, _, subresource = resource.partition("/")
        attributes = {"verb": verb, "resource": name, **({"subresource": subresource} if subresource else {})}
        if name == "nodes":
            attributes["name"] = self._node_name
        elif name == "events":
            attributes["namespace"] = "default"
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        try:
            answer = self._call("POST", _REVIEWS, "create selfsubjectaccessreviews", body, "application/json")
        except ApiRefused:
            return True
        return bool((answer.get("status") or {}).get("allowed", True))

    @property
    def _node_path(self) -> str:
        return f"/api/v1/nodes/{self._node_name}"

    @property
    def _on_node(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.nodeName={self._node_name}"}

    def _lines(self, response: Any) -> Generator[bytes, None, None]:
        """Whole lines of the stream. Raises WatchBroken when it is cut, Terminated when we are to end."""
        buffer = b""
        while True:
            try:
                with self._clock.interruptible():
                    chunk = response.read1(65536)
            except ReadTimeoutError:
                raise WatchBroken("the watch fell silent", "") from None
            except (HTTPError, OSError) as error:
                raise WatchBroken(f"the watch broke off ({type(error).__name__})", "") from error
            if not chunk:
                if buffer.strip():
                    raise WatchBroken("the watch was cut in the middle of a line", "")
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            yield from (line for line in lines if line.strip())

    def _call(
        self, method: str, path: str, what: str, body: Mapping[str, Any] | None = None, content_type: str = ""
    ) -> dict[str, Any]:
        return self._retrying(lambda: self._once(method, path, what, body, content_type))

    def _retrying(self, call: Callable[[], T]) -> T:
        """Repeat `call` while what it meets is transient. Raises ApiUnavailable once the budget is spent."""
        end = self._clock.monotonic() + self._retry_budget_s
        backoff = tenacity.wait_random_exponential(multiplier=0.2, max=5, min=0.1)

        def wait_s(state: tenacity.RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked_s = error.retry_after_s if isinstance(error, _Transient) else 0.0
            left_s = max(0.0, end - self._clock.monotonic())
            return min(left_s, max(asked_s, backoff(state)))

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Transient),
            stop=lambda _: self._clock.monotonic() >= end,
            wait=wait_s,
            sleep=self._clock.sleep,
            before_sleep=self._say_retry,
            reraise=True,
        )
        try:
            return retrying(call)
        except _Transient as error:
            raise ApiUnavailable(
                f"the API server did not answer usefully for {self._retry_budget_s:g} s: {error}",
                "Check that the API server can be reached from this node; the next run tries again.",
            ) from error

    def _say_retry(self, state: tenacity.RetryCallState) -> None:
        if state.attempt_number == 1 or state.attempt_number % 10 == 0:
            error = state.outcome.exception() if state.outcome else None
            self._reporter.warn(f"API: {error}; trying again")

    def _once(self, method: str, path: str, what: str, body: Any, content_type: str) -> dict[str, Any]:
        """One request, the connection's answer as JSON. Raises _Transient or the ManagerError it means."""
        with self._clock.interruptible() if method == "GET" else contextlib.nullcontext():
            response = self._send(method, path, body, content_type, self._read_timeout_s)
            try:
                data = response.data
            except (HTTPError, OSError) as error:
                raise _Transient(f"the answer broke off ({type(error).__name__})") from error
        if response.status >= 300:
            raise _error_for(response.status, response.headers, data, what, self._node_name)
        return _json_object(data)

    def _open(self, path: str, silence_s: float) -> Any:
        """An open watch stream. Raises as `_once`, and Terminated."""
        with self._clock.interruptible():
            response = self._send("GET", path, None, "", silence_s, stream=True)
        if response.status >= 300:
            with response:
                raise _error_for(response.status, response.headers, response.data, "watch pods", self._node_name)
        return response

    def _send(
        self, method: str, path: str, body: Any, content_type: str, read_s: float, *, stream: bool = False
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": "driver-manager"}
        if content_type:
            headers["Content-Type"] = content_type
        configuration = self._api.configuration
        token = configuration.get_api_key_with_prefix("BearerToken", "authorization")
        if token:
            headers["Authorization"] = token
        try:
            return self._api.rest_client.pool_manager.request(  # type: ignore[no-any-return]  # the client is untyped
                method,
                configuration.host + path,
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, read_s), read=read_s),
                preload_content=not stream,
                retries=False,
                redirect=False,
            )
        except (HTTPError, OSError) as error:
            raise _Transient(_why_unreachable(error)) from error
        except ValueError as error:
            raise ConfigError(
                "the credentials cannot be sent: they hold characters that no header can", "Renew the kubeconfig."
            ) from error


def _as_pod_list(body: Mapping[str, Any]) -> PodList:
    return PodList(tuple(as_pod(item) for item in body.get("items") or []), body["metadata"]["resourceVersion"])


def _understood(read: Callable[[Mapping[str, Any]], T], body: Mapping[str, Any]) -> T:
    """`read(body)`. Raises ApiUnavailable for an answer that is not the object that was asked for."""
    try:
        return read(body)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ApiUnavailable(
            f"the API server's answer is not the object that was asked for ({type(error).__name__})",
            "Check that the kubeconfig points to a Kubernetes API server.",
        ) from error


def _why_unreachable(error: Exception) -> str:
    reason = error.reason if isinstance(error, MaxRetryError) and error.reason else error
    if isinstance(reason, NewConnectionError):
        return f"cannot connect: {str(reason).rpartition(': ')[2]}"
    return f"{type(reason).__name__}: {reason}".splitlines()[0][:200]


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except ValueError as error:
        raise _Transient("the answer is not JSON") from error
    if not isinstance(body, dict):
        raise _Transient("the answer is not a JSON object")
    return body


def _error_for(status: int, headers: Mapping[str, str], data: bytes, what: str, node: str) -> Exception:
    """The exception that an HTTP status means for `what` (verb and resource)."""
    message = _status_message(data)
    if status in (401, 403):
        return ApiRefused(
            f"the API server refused to {what} ({status}): {message}",
            "Renew the credentials."
            if status == 401
            else "Give this account the verb; the README lists all that it needs.",
        )
    if status == 404 and what.endswith(" nodes"):
        return NodeMissing(f"node {node} does not exist", "Set NODE_NAME (or --node-name) to the node this runs on.")
    if status == 409:
        return Conflict(f"node {node} changed since it was read", "Run again.")
    if status == 410:
        return WatchExpired("the resourceVersion is too old", "")
    if status in _TRANSIENT:
        return _Transient(f"{what}: {status} {message}", _retry_after_s(headers))
    return ManagerError(
        f"the API server rejected {what} ({status}): {message}", "This is a bug or an API server too old; report it."
    )


def _retry_after_s(headers: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(headers.get("Retry-After", "")))
    except ValueError:
        return 0.0


def _status_message(data: bytes) -> str:
    try:
        message = json.loads(data).get("message")
    except (ValueError, AttributeError):
        message = None
    text = message if isinstance(message, str) else data[:200].decode(errors="replace")
    return text.strip().splitlines()[0][:300] if text.strip() else "no message"


def _as_event(line: bytes) -> PodEvent | None:
    """The event in one line of a watch; None for kinds we do not know. Raises WatchExpired, WatchBroken."""
    try:
        body = json.loads(line)
        kind, thing = body["type"], body["object"]
        version = (thing.get("metadata") or {}).get("resourceVersion", "")
        pod = as_pod(thing) if kind in _POD_EVENTS else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WatchBroken("the watch sent something that is not an event", "") from error
    if kind == "ERROR":
        if thing.get("code") == 410:
            raise WatchExpired("the resourceVersion is too old", "")
        raise WatchBroken(f"the watch reported an error: {thing.get('message', 'no message')}", "")
    if kind == "BOOKMARK":
        return PodEvent(PodEventKind.BOOKMARK, None, version)
    return PodEvent(_POD_EVENTS[kind], pod, version) if kind in _POD_EVENTS else None


def _event(node: str, reason: str, message: str, wall_s: float, *, warning: bool) -> dict[str, Any]:
    """A core/v1 Event about the Node; such events live in the namespace default."""
    stamp = datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {"generateName": f"{node}.driver-manager-", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "reason": reason,
        "message": message[:1000],
        "type": "Warning" if warning else "Normal",
        "source": {"component": "driver-manager", "host": node},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
