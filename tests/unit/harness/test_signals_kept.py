"""What a test does to the signals of the process is undone before the next one."""

from __future__ import annotations

import signal

import pytest


def _other(_number: int, _frame: object) -> None:
    """A handler of a test's own."""


@pytest.mark.parametrize("turn", [1, 2])
def test_a_handler_that_a_test_leaves_is_gone_in_the_next(turn: int) -> None:
    assert signal.getsignal(signal.SIGHUP) is not _other, turn
    signal.signal(signal.SIGHUP, _other)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR2,))


def test_a_mask_that_a_test_leaves_is_gone_in_the_next() -> None:
    assert signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
