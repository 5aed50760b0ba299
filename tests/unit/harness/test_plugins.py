"""What a test does to signals is undone before the next one."""

from __future__ import annotations

import signal

import pytest


@pytest.mark.parametrize("turn", [1, 2])
def test_handler_and_mask_that_a_test_leaves_are_gone_in_the_next(turn: int) -> None:
    ours = signal.default_int_handler
    assert signal.getsignal(signal.SIGHUP) is not ours, turn
    assert signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signal.signal(signal.SIGHUP, ours)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR2,))
