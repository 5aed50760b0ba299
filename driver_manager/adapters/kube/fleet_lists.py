"""All objects of one subject of a rollout, listed page by page: for feeds, and for who only wants to look once.

Owns how a list goes on from page to page. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlencode

from driver_manager.adapters.kube.client import NO_TURNSTILE, KubeApi
from driver_manager.adapters.kube.fleet_objects import Reader
from driver_manager.adapters.kube.fleet_paths import collection, qualified
from driver_manager.adapters.kube.objects import as_versioned, understood
from driver_manager.ports.fleet import Item, Listed, Subject

PAGE = 500


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
    query = {"limit": str(PAGE), **label_selector(subject)}
    path = f"{collection(subject)}?{urlencode(query)}"
    return api.pages(path, f"list {qualified(subject.kind)}", turnstile, passing)


def label_selector(subject: Subject) -> dict[str, str]:
    """The part of a query by which the server selects."""
    return {"labelSelector": subject.selector} if subject.selector else {}
