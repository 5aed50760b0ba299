"""What differs between this machine and the kernel tier's guest, and how long the node tier waits on it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.support.fakes.pace import patient
from tests.support.node.node_init import STAND_INS

LONG_S = 120.0
"""For what takes a kubelet a few of its rounds: a pod that comes, leaves, or is started again after a failure."""

REST = 4
"""How many times as long as an answer took it is waited before the next question."""

LONGEST_REST_S = 2.0

T = TypeVar("T")


def wait_until(check: Callable[[], T | None], what: str, idle_s: float = LONG_S, every_s: float = 0.05) -> T:
    """The first truthy value of `check`, asked every `every_s` seconds. AssertionError after `idle_s`, made longer.

    Where asking takes long it is asked less often: it takes from what is waited for.
    """
    began_s = time.monotonic()
    allowed_s, is_measured = idle_s, False
    while True:
        asked_s = time.monotonic()
        value = check()
        if value:
            return value
        if time.monotonic() - began_s > allowed_s and not is_measured:
            allowed_s, is_measured = patient(idle_s), True
        if time.monotonic() - began_s > allowed_s:
            raise AssertionError(f"not within {allowed_s:.0f} s ({idle_s:g} s of an idle machine): {what}")
        time.sleep(max(every_s, min(REST * (time.monotonic() - asked_s), LONGEST_REST_S)))


def ended(process: subprocess.Popen[Any], idle_s: float) -> int:
    """Its exit status. Raises TimeoutExpired."""
    try:
        return process.wait(idle_s)
    except subprocess.TimeoutExpired:
        return process.wait(max(0.0, patient(idle_s) - idle_s))


def run(argv: Sequence[str], given: str, idle_s: float) -> subprocess.CompletedProcess[str]:
    """The command with what it wrote; any exit status. Raises TimeoutExpired, and then the command is killed."""
    pipe = subprocess.PIPE
    with subprocess.Popen(list(argv), stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            try:
                out, err = process.communicate(given, timeout=idle_s)
            except subprocess.TimeoutExpired:
                out, err = process.communicate(timeout=max(0.0, patient(idle_s) - idle_s))
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(argv), process.returncode, out, err)


CHECKOUT = Path(__file__).resolve().parents[3]
FOLDER = CHECKOUT / "build" / "node"


def _nothing(_: str) -> None:
    """Who is at the terminal needs no word of each step."""


@dataclass(frozen=True)
class Place:
    """Where a node is, and whose kernel it runs on.

    `folder` holds its state, on a file system that overlayfs can write to, and its logs. With `has_stand_ins` its
    modules and devices are made up, because the kernel belongs to others; without, they are the kernel's. `stock` is
    what `Containers.packed_to` has packed: images that need not be loaded. `node_status_every` is how often the kubelet
    looks at its Node. `say` is told what has come about on the node.
    """

    folder: Path
    has_stand_ins: bool
    stock: Path | None = None
    node_status_every: str = "1s"  # the kubelet's default, 10 s, is waited for at every start
    say: Callable[[str], None] = _nothing

    def modules(self, root: Path) -> Path:
        """The node's /sys/module, as this process reaches it; `root` are the node's files."""
        return root / STAND_INS.relative_to("/") / "sys/module" if self.has_stand_ins else Path("/sys/module")


HERE = Place(FOLDER, has_stand_ins=True)
