"""Requests overlap, so many at a time; an error, or the wish to end, waits for none that is still under way."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from driver_manager.adapters.kube.node import answers
from driver_manager.adapters.process.clock import SystemClock, ThreadClock
from driver_manager.core.ports_base import Clock
from driver_manager.domain.errors import Conflict, Terminated

LONG_S = 20.0


class Desk:
    """Counts how many ask at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = self.makers = 0

    def asking(self, ask: Callable[[int], int]) -> Callable[[Clock], Callable[[int], int]]:
        def counted(item: int) -> int:
            with self.lock:
                self.now += 1
                self.most = max(self.most, self.now)
            try:
                return ask(item)
            finally:
                with self.lock:
                    self.now -= 1

        def maker(_: Clock) -> Callable[[int], int]:
            self.makers += 1
            return counted

        return maker


def test_so_many_are_under_way_at_once_and_no_more() -> None:
    together, desk = threading.Barrier(4), Desk()

    def ask(item: int) -> int:
        together.wait(LONG_S)  # broken, unless four are under way
        return item * item

    found = dict(answers(range(20), desk.asking(ask), ThreadClock(), 4))
    assert found == {item: item * item for item in range(20)}
    assert (desk.most, desk.makers) == (4, 4)


def test_one_item_takes_one_thread_and_none_is_left() -> None:
    desk, before = Desk(), threading.active_count()
    assert list(answers([7], desk.asking(lambda item: item), ThreadClock(), 8)) == [(7, 7)]
    assert desk.makers == 1
    assert threading.active_count() == before


def test_the_next_item_is_taken_only_when_there_is_room_for_it() -> None:
    taken, release = [], threading.Event()

    def items() -> Iterator[int]:
        for item in range(5):
            taken.append(item)
            yield item

    def ask(item: int) -> int:
        assert item == 0 or release.wait(LONG_S)
        return item

    found = answers(items(), lambda _: ask, ThreadClock(), 2)
    assert next(found) == (0, 0)
    assert taken == [0, 1]
    release.set()
    assert sorted(item for item, _ in found) == [1, 2, 3, 4]


def test_what_a_request_raises_is_raised_and_nothing_more_is_asked() -> None:
    asked, hang, hangs = [], threading.Event(), threading.Event()

    def ask(item: int) -> int:
        if item:
            assert hangs.wait(LONG_S)
            asked.append(item)
            raise Conflict("changed", "Run again.")
        asked.append(item)
        hangs.set()
        hang.wait(LONG_S)
        return item

    with pytest.raises(Conflict):
        list(answers(range(10), lambda _: ask, ThreadClock(), 2))
    hang.set()
    assert asked == [0, 1]


def test_what_the_items_raise_is_raised_while_a_request_hangs() -> None:
    hang = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        raise Conflict("taken over", "")

    with pytest.raises(Conflict):
        list(answers(items(), lambda _: lambda item: item if hang.wait(LONG_S) else 0, ThreadClock(), 2))
    assert not hang.is_set()
    hang.set()


def test_nobody_repeats_a_request_once_the_caller_has_stopped() -> None:
    asked, ended = threading.Event(), threading.Event()

    def maker(clock: Clock) -> Callable[[int], int]:
        def ask(item: int) -> int:
            asked.set()
            try:
                clock.sleep(LONG_S)  # as between two attempts
            except Terminated:
                ended.set()
                raise
            return item

        return ask

    def items() -> Iterator[int]:
        yield 1
        assert asked.wait(LONG_S)
        raise Conflict("taken over", "")

    with pytest.raises(Conflict):
        list(answers(items(), maker, ThreadClock(), 2))
    assert ended.wait(LONG_S / 2)


def tell_the_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def tell_this_thread() -> None:
    """As a signal that comes right before the main thread blocks, this one ends no wait of it."""
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)


@pytest.mark.submission
@pytest.mark.parametrize("send", [tell_the_process, tell_this_thread])
def test_the_wish_to_end_waits_for_no_answer(send: Callable[[], None]) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    clock, hang, asked = SystemClock(), threading.Event(), threading.Event()
    clock.install()

    def ask(item: int) -> int:
        asked.set()
        hang.wait(LONG_S)
        return item

    def tell() -> None:
        asked.wait(LONG_S)
        send()

    teller = threading.Thread(target=tell)
    try:
        teller.start()
        began_s = time.monotonic()
        with pytest.raises(Terminated):
            list(answers([1], lambda _: ask, clock, 2))
        assert time.monotonic() - began_s < LONG_S / 2
    finally:
        hang.set()
        teller.join()
        for number, handler in before.items():
            signal.signal(number, handler)
