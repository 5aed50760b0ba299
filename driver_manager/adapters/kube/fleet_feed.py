"""One subject of a rollout as the API server shows it: listed page by page, then watched, in a thread of its own.

Owns when it lists again, and how it goes on after an error. What it finds goes to `tell`, in order; it decides nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from driver_manager.adapters.kube.client import KubeApi
from driver_manager.adapters.kube.fleet_lists import label_selector, listed
from driver_manager.adapters.kube.fleet_objects import Reader
from driver_manager.adapters.kube.fleet_paths import collection, qualified
from driver_manager.adapters.kube.objects import as_versioned
from driver_manager.adapters.kube.transport import Transport
from driver_manager.adapters.kube.watching import BOOKMARK, DELETED, PRESENT, events, sent
from driver_manager.adapters.process.thread_clock import ThreadClock
from driver_manager.domain.backoff import around_s, retry_s
from driver_manager.domain.errors import ApiRefused, ManagerError, Terminated, WatchBroken, WatchExpired
from driver_manager.domain.listing import sentences
from driver_manager.ports.fleet import Change, Found, Gone, Lost, Seen, Subject

WATCH_S = 420.0
"""How long one watch lasts, more or less by a third: those of all controllers must not end together."""

BUDGET_S = 30.0
"""What one list page or the opening of a watch may be tried for before the subject counts as lost. A page of large
Nodes may take a busy server seconds."""

BREAKS = 3
"""So many watches in a row that break before they told anything: then the subject counts as lost."""

REFUSED_S = 30.0
"""Between two requests that the server refuses for want of a right, or of the resource."""

Tell = Callable[[Change | BaseException], None]


class SilentReporter:
    """See `driver_manager.ports.base.Reporter`. The loop says what a thread tells it; a log has one writer."""

    def step(self, number: int, total: int, text: str) -> None:
        """See the port."""

    def info(self, text: str) -> None:
        """See the port."""

    def warn(self, text: str) -> None:
        """See the port."""


class Feed:
    """Follows one subject until `stop`. `connect` makes a way to the server, which is used by this thread alone.

    `turnstile` is held while one page is read: pages are large, and several at once need the memory of several. What
    is no expected error is told as it is, and ends the thread.
    """

    def __init__(
        self,
        subject: Subject,
        connect: Callable[[], Transport],
        read: Reader,
        turnstile: AbstractContextManager[Any],
        tell: Tell,
    ) -> None:
        self.subject = subject
        self._connect = connect
        self._read = read
        self._turnstile = turnstile
        self._tell_all = tell
        self._clock = ThreadClock()
        self._version = ""
        self._failed = 0
        self._is_lost = False
        # A watch may block for as long as it is silent: nobody waits for that when the process ends.
        self._thread = threading.Thread(target=self._run, name=f"feed {subject}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Tell nothing from now on. The thread ends with its next answer."""
        self._clock.end()

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended, after `timeout_s` seconds at the latest."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._follow()
        except Terminated:
            return
        except BaseException as error:  # noqa: BLE001  # a bug: it is the loop that ends with a traceback
            self._tell(error)

    def _tell(self, change: Change | BaseException) -> None:
        if not self._clock.is_ending():
            self._tell_all(change)

    def _follow(self) -> None:
        """For ever; raises Terminated."""
        api: KubeApi | None = None
        while True:
            self._clock.check()
            try:
                if api is None:
                    api = KubeApi(self._connect(), self._clock, SilentReporter(), BUDGET_S)
                if not self._version:
                    self._version = self._list(api)
                self._watch(api)
            except Terminated:
                raise
            except WatchExpired:
                self._version = ""
                self._pause(0.0)
            except WatchBroken as error:
                self._pause(0.0, error.what if self._failed >= BREAKS else "")
            except ManagerError as error:
                self._pause(REFUSED_S if isinstance(error, ApiRefused) else 0.0, sentences(error.what, error.remedy))

    def _pause(self, least_s: float, why_lost: str = "") -> None:
        """Before the next try: the longer the more have failed in a row. Raises Terminated."""
        self._failed += 1
        if why_lost:
            self._is_lost = True
            self._tell(Lost(self.subject, why_lost))
        # All watches of a server that went break together, so the first pause is a random one, too.
        pause_s = retry_s(self._failed, 0.0, self._clock.random()) if self._failed > 1 else self._clock.random()
        self._clock.sleep(max(least_s, pause_s))

    def _list(self, api: KubeApi) -> str:
        """The version of a list of all there is. Raises as KubeApi, WatchExpired where it went on for too long."""
        found = listed(api, self.subject, self._read, self._turnstile)
        self._tell(found)
        return found.version

    def _watch(self, api: KubeApi) -> None:
        """One watch until the server ends it. Raises as KubeApi, WatchExpired, WatchBroken."""
        what, path = f"watch {qualified(self.subject.kind)}", collection(self.subject)
        timeout_s = around_s(WATCH_S, self._clock.random(), 1 / 3)
        selector = label_selector(self.subject)
        for kind, thing in events(api, path, what, selector, self._version, timeout_s, self._find):
            self._clock.check()
            if kind == BOOKMARK:
                self._version = sent(as_versioned, thing)[0]
            elif kind in PRESENT or kind == DELETED:
                item = sent(self._read, thing)
                is_there = kind in PRESENT
                self._tell(Seen(self.subject, item) if is_there else Gone(self.subject, item.name, item.version))
                self._version = item.version
            self._failed = 0
        self._failed = 0

    def _find(self) -> None:
        """The server has taken the watch."""
        if self._is_lost:
            self._is_lost = False
            self._tell(Found(self.subject))
