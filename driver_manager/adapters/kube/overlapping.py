"""Several requests at once: each item in a thread of its own, no more than so many under way, answers as they come.

Owns the threads. They are left behind where the caller stops asking, and begin nothing more then: what a server keeps
open must not keep a process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from driver_manager.adapters.process.aside import start_unsignalled
from driver_manager.adapters.process.thread_clock import ThreadClock
from driver_manager.ports.base import Clock

END_S = 5.0
"""What is waited for a thread that has nothing to do any more."""

LOOK_S = 0.5
"""How often a signal is looked for: one that arrives right before the wait, or in another thread, does not end it."""

T = TypeVar("T")
A = TypeVar("A")


class _Crew(Generic[T, A]):
    """The threads of one volley: as many as were ever needed at once."""

    def __init__(self, maker: Callable[[Clock], Callable[[T], A]]) -> None:
        self._maker = maker
        self._clock = ThreadClock()
        self._todo: SimpleQueue[tuple[T] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[T, A | BaseException]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.under_way = 0

    def begin(self, item: T) -> None:
        if self.under_way == len(self._threads):
            # The end of the process waits for no such thread.
            thread = threading.Thread(target=self._work, args=(self._maker(self._clock),), name="request", daemon=True)
            self._threads.append(thread)
            start_unsignalled(thread)
        self.under_way += 1
        self._todo.put((item,))

    def answer(self, clock: Clock) -> tuple[T, A]:
        """The answer that comes first. Raises what its request raised, and Terminated."""
        with clock.interruptible():
            item, answer = self._next()
        self.under_way -= 1
        if isinstance(answer, BaseException):
            raise answer
        return item, answer

    def _next(self) -> tuple[T, A | BaseException]:
        while True:
            try:
                return self._done.get(timeout=LOOK_S)
            except Empty:
                continue  # the signal's handler is called here

    def end(self) -> None:
        """No thread begins another request, or repeats one; idle ones are waited for, so that a fork finds none."""
        is_idle = not self.under_way
        self._clock.end()
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads if is_idle else ():
            thread.join(END_S)

    def _work(self, ask: Callable[[T], A]) -> None:
        while (task := self._todo.get()) is not None:
            try:
                answer: A | BaseException = ask(task[0])
            except BaseException as error:  # noqa: BLE001  # whatever it is, it is raised where the answer is awaited
                answer = error
            self._done.put((task[0], answer))


def answers(
    items: Iterable[T], maker: Callable[[Clock], Callable[[T], A]], clock: Clock, at_once: int
) -> Generator[tuple[T, A], None, None]:
    """Each item with its answer, in the order in which answers come.

    `maker` gives each thread what asks there, on a clock that ends with this. The next item is taken once there is room
    for it, by the caller's own thread. Raises what an item's request raised, what `items` raises, Terminated at once.
    """
    crew = _Crew(maker)
    try:
        for item in items:
            crew.begin(item)
            if crew.under_way == at_once:
                yield crew.answer(clock)
        while crew.under_way:
            yield crew.answer(clock)
    finally:
        crew.end()
