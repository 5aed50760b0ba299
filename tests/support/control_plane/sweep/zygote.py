"""A process that has imported the program, and forks a run of it for each order on standard input.

An import costs half a second, a fork some milliseconds; what runs is the same. It answers an order with the pid; to the
line after it, when the run has ended, with the wait status. Until then the pid is not free for another process.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

from tests.support.control_plane.sweep.launch import Order, run

IMPORTED = (
    "driver_manager.cli.main",
    "driver_manager.cli.reconcile",
    "driver_manager.adapters.kube.node",
    "kubernetes.config",
)


def serve() -> Order | None:
    """Fork for each order; in the child the order, in the parent None at the end of the orders."""
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            return Order.decode(line)
        print(pid, flush=True)
        sys.stdin.readline()
        print(os.waitpid(pid, 0)[1], flush=True)
    return None


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # what is never looked at stays shared with the children
    print("ready", flush=True)
    ordered = serve()
    if ordered is not None:
        run(ordered)
