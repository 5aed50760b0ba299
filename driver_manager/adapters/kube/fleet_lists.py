"""All objects of one subject of a rollout, listed page by page: for feeds, and for who only wants to look once.

Owns how a list goes on from page to page. Decides nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlencode

from driver_manager.adapters.kube.answers import EXPIRED, Answer
from driver_manager.adapters.kube.client import KubeApi
from driver_manager.adapters.kube.fleet_objects import Reader
from driver_manager.adapters.kube.fleet_paths import collection, qualified
from driver_manager.adapters.kube.objects import as_versioned, understood
from driver_manager.domain.errors import WatchExpired
from driver_manager.ports.fleet import Item, Listed, Subject

PAGE = 500

NO_TURNSTILE: AbstractContextManager[Any] = contextlib.nullcontext()


def listed(
    api: KubeApi,
    subject: Subject,
    read: Reader,
    turnstile: AbstractContextManager[Any] = NO_TURNSTILE,
    passing: frozenset[int] = frozenset(),
) -> Listed:
    """All objects of `subject`. `turnstile` is held while one page is read.

    Raises as KubeApi with `passing`, and WatchExpired where the list went on for too long.
    """
    items: list[Item] = []
    version = ""
    for body in pages(api, subject, turnstile, passing):
        items += understood(lambda page: [read(one) for one in page.get("items") or []], body)
        version, _ = understood(as_versioned, body)
    return Listed(subject, tuple(items), version)


def pages(
    api: KubeApi,
    subject: Subject,
    turnstile: AbstractContextManager[Any] = NO_TURNSTILE,
    passing: frozenset[int] = frozenset(),
) -> Iterator[Mapping[str, Any]]:
    """The pages of such a list as they are answered. Raises as `listed`."""
    what, token = f"list {qualified(subject.kind)}", ""
    while True:
        query = {"limit": str(PAGE), **label_selector(subject), **({"continue": token} if token else {})}
        with turnstile:
            try:
                path = f"{collection(subject)}?{urlencode(query)}"
                body = api.call("GET", path, what, passing=passing | {EXPIRED})
            except Answer as answer:
                if answer.status != EXPIRED:
                    raise
                raise WatchExpired(f"{what}: {answer.message}", "No action needed; it is retried.") from answer
            yield body
        token = understood(lambda page: str((page.get("metadata") or {}).get("continue") or ""), body)
        if not token:
            return


def label_selector(subject: Subject) -> dict[str, str]:
    """The part of a query by which the server selects."""
    return {"labelSelector": subject.selector} if subject.selector else {}
