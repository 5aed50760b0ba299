"""One watch: how it is asked for, and what its lines are. Knows no resource."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any, TypeVar
from urllib.parse import urlencode

from driver_manager.adapters.kube.answers import EXPIRED
from driver_manager.adapters.kube.client import KubeApi
from driver_manager.domain.errors import WatchBroken, WatchExpired

WATCH_SILENCE_S = 90.0
"""Servers send bookmarks about once a minute; a stream silent for longer is taken for dead."""

PRESENT = frozenset({"ADDED", "MODIFIED"})
DELETED, BOOKMARK = "DELETED", "BOOKMARK"

END_S = 1.0
"""How much later than asked for a server may end a watch."""

T = TypeVar("T")


def events(  # noqa: PLR0913, PLR0917  # the parts of one request
    api: KubeApi,
    path: str,
    what: str,
    query: Mapping[str, str],
    resource_version: str,
    timeout_s: float,
    opened: Callable[[], None] = lambda: None,
) -> Generator[tuple[str, dict[str, Any]], None, None]:
    """Type and object of each event; `opened` is called once the server has taken the watch.

    Raises as KubeApi, WatchExpired, WatchBroken.
    """
    asked_s = max(1, round(timeout_s))
    options = {
        **query,
        "watch": "1",
        "resourceVersion": resource_version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(asked_s),
    }
    limit_s = asked_s + END_S
    silence_s = min(WATCH_SILENCE_S, limit_s)
    with closing(api.stream(f"{path}?{urlencode(options)}", what, silence_s, limit_s, opened)) as lines:
        for line in lines:
            yield _as_event(line)


def sent(read: Callable[[Mapping[str, Any]], T], thing: Mapping[str, Any]) -> T:
    """`read(thing)` of a watch's object. Raises WatchBroken for what is not such an object."""
    try:
        return read(thing)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise _strange(error) from error


def _as_event(line: bytes) -> tuple[str, dict[str, Any]]:
    """Type and object of one line of a watch. Raises WatchExpired, WatchBroken."""
    try:
        body = json.loads(line)
        kind, thing = str(body["type"]), body["object"]
        thing.get("metadata")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _strange(error) from error
    if kind == "ERROR":
        if thing.get("code") == EXPIRED:
            raise WatchExpired("the resourceVersion is too old", "")
        raise WatchBroken(f"the watch reported an error: {thing.get('message', 'no message')}", "")
    return kind, thing


def _strange(error: Exception) -> WatchBroken:
    return WatchBroken(f"the watch sent something that is not an event ({type(error).__name__})", "")
