"""A small JSON client of the API server, its watch, and a bounded wait. It does not use the product."""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

import urllib3

Json = dict[str, Any]
T = TypeVar("T")

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"

_REQUEST_TIMEOUT = urllib3.Timeout(connect=25, read=150)


class ApiError(Exception):
    """The API server refused a request: HTTP `status` and the message of the Status object it sent."""

    def __init__(self, method: str, path: str, status: int, body: Json) -> None:
        super().__init__(f"{method} {path}: {status} {body.get('message', body)}")
        self.status = status
        self.body = body


PATIENCE_S = float(os.environ.get("TEST_PATIENCE_S", "300"))
"""How long a busy machine may take to bring about what is sure to come; nothing is slower for it on an idle one.

Where a mutant is on trial what is waited for is sure not to come: there it is less.
"""


SELDOM_S = 0.1
"""The longest pause between two looks of a wait that asks for no longer one."""


def wait_until(check: Callable[[], T | None], what: str, timeout_s: float = PATIENCE_S, every_s: float = 0.02) -> T:
    """The first truthy value of `check`, asked ever less often. AssertionError after `timeout_s` seconds."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(every_s)
        every_s = max(every_s, min(1.25 * every_s, SELDOM_S))


class Watch:
    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._stopped = False

    def __iter__(self) -> Iterator[tuple[str, Json]]:
        """(type, object) of every event, until the server ends the stream or `stop()` is called."""
        rest = b""
        try:
            for chunk in self._response.stream(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    yield event["type"], event["object"]
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError):
            # A read that `stop()` cut off ends as any of these, by where in ssl.py or in a chunk it stood.
            if not self._stopped:
                raise

    def stop(self) -> None:
        """End the iteration, from any thread. The socket is closed by `close()`, in the reader's thread."""
        self._stopped = True
        with contextlib.suppress(ValueError, RuntimeError, OSError):  # the stream had ended by itself
            self._response.shutdown()

    def close(self) -> None:
        """Close the connection, which ends the request at the server too."""
        self._response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Api:
    """JSON requests with one bearer token; `ca` is None for plain HTTP. Safe to share between threads.

    A server that gives no answer is asked again for `patience_s` seconds.
    """

    patience_s = 0.0

    def __init__(self, url: str, ca: Path | None, token: str) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        context = ssl.create_default_context(cafile=str(ca)) if ca else None
        self._pool = urllib3.PoolManager(ssl_context=context, maxsize=8, retries=False, timeout=_REQUEST_TIMEOUT)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Json | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Json:
        """The decoded answer. ApiError for every status from 400 on; urllib3's HTTPError when there is no answer."""
        headers = self._headers | {"Content-Type": content_type, "Accept": accept}
        data = None if body is None else json.dumps(body).encode()
        end_s = time.monotonic() + self.patience_s
        while True:
            try:
                response = self._pool.request(method, self._url + path + _query(params), body=data, headers=headers)
                break
            except urllib3.exceptions.HTTPError:
                if time.monotonic() >= end_s:
                    raise
                time.sleep(0.05)
        answer = _decoded(response.data)
        if response.status >= 400:
            raise ApiError(method, path, response.status, answer)
        return answer

    def get(self, path: str, **params: str) -> Json:
        return self.request("GET", path, params=params)

    def answers(self, path: str) -> bool:
        try:
            self.get(path)
        except (ApiError, urllib3.exceptions.HTTPError):
            return False
        return True

    def list(self, path: str, **params: str) -> list[Json]:
        """The items of a collection; `labelSelector` and `fieldSelector` as keywords."""
        return list(self.request("GET", path, params=params)["items"])

    def post(self, path: str, body: Json) -> Json:
        return self.request("POST", path, body)

    def patch(self, path: str, body: Any, content_type: str = MERGE_PATCH) -> Json:
        """The object after the patch. A `metadata.resourceVersion` in a merge patch is a precondition (409)."""
        return self.request("PATCH", path, body, content_type=content_type)

    def delete(self, path: str, *, grace_s: int | None = None, uid: str | None = None) -> Json:
        """Delete, with a grace period in seconds and a uid precondition (409) where given."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        return self.request("DELETE", path, options)

    def watch(self, path: str, *, timeout_s: int = 300, **params: str) -> Watch:
        """An open watch, ended by the server after `timeout_s` seconds. ApiError as for `request`."""
        query = _query({"watch": "1", "timeoutSeconds": str(timeout_s)} | params)
        timeout = urllib3.Timeout(connect=25, read=timeout_s + 50)
        response = self._pool.request(
            "GET", self._url + path + query, headers=self._headers, preload_content=False, timeout=timeout
        )
        if response.status >= 400:
            answer = _decoded(response.data)
            raise ApiError("WATCH", path, response.status, answer)
        return Watch(response)

    def close(self) -> None:
        self._pool.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Follower:
    """Lists `path` and watches it from there, again whenever a watch ends, in a thread while the context lasts.

    `see` gets type and object of each event, and each listed object as ADDED after `relisted` got all of them. An
    unexpected error ends the thread; pytest then fails the test.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        see: Callable[[str, Json], object],
        *,
        relisted: Callable[[list[Json]], object] = lambda _: None,
        timeout_s: int = 300,
        **params: str,
    ) -> None:
        self._api, self._path, self._params, self._timeout_s = api, path, params, timeout_s
        self._see, self._relisted = see, relisted
        self._lock = threading.Lock()
        self._is_over = False
        self._stop: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._follow, name=f"follower of {path}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
            self._stop()
        self._thread.join(timeout=60)
        assert not self._thread.is_alive(), f"{self._thread.name} did not end"

    def _follow(self) -> None:
        while not self._is_over:
            listed = self._api.get(self._path, **self._params)
            self._relisted(listed["items"])
            for one in listed["items"]:
                self._see("ADDED", one)
            for kind, one in self._events(listed["metadata"]["resourceVersion"]):
                self._see(kind, one)

    def _events(self, version: str) -> Iterator[tuple[str, Json]]:
        """What a watch brings, until it ends or breaks."""
        asked = {"resourceVersion": version, **self._params}
        with (
            contextlib.suppress(urllib3.exceptions.HTTPError),
            self._api.watch(self._path, timeout_s=self._timeout_s, **asked) as stream,
        ):
            with self._lock:
                if self._is_over:
                    return
                self._stop = stream.stop
            for kind, one in stream:
                if kind == "ERROR":  # 410: the version is compacted
                    return
                yield kind, one


@contextlib.contextmanager
def repeated(act: Callable[[], object], every_s: float, name: str) -> Iterator[None]:
    """`act` again and again in a thread, for the first time before the context begins."""
    over, begun = threading.Event(), threading.Event()

    def loop() -> None:
        while not over.is_set():
            act()
            begun.set()
            over.wait(every_s)

    thread = threading.Thread(target=loop, name=name)
    thread.start()
    try:
        assert begun.wait(75.0)
        yield
    finally:
        over.set()
        thread.join()


def gone(request: Callable[[], object], *also: int) -> bool:
    """Make the request; True if it was answered 404, or one of the statuses in `also`. Other ApiErrors are raised."""
    try:
        request()
    except ApiError as error:
        if error.status not in (404, *also):
            raise
        return True
    return False


def refusal(request: Callable[[], object]) -> ApiError:
    """How the request was refused. AssertionError if it was not."""
    try:
        answer = request()
    except ApiError as error:
        return error
    raise AssertionError(f"answered: {answer}")


def status_of(request: Callable[[], object]) -> int:
    """The HTTP status of a refusal; 200 for any success."""
    try:
        request()
    except ApiError as error:
        return error.status
    return 200


def _query(params: Json | None) -> str:
    return "?" + urlencode(params) if params else ""


def _decoded(data: bytes) -> Json:
    """The JSON object, or the text as a message: some refusals (401, 429, 5xx) are plain text."""
    try:
        answer = json.loads(data)
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else {"message": data.decode(errors="replace").strip()}
