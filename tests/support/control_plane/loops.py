"""Owns the loops that a test lets run beside others: health-watch and the rebooter, each with its log in a file.

Must not import the product.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.control_plane.api import wait_until

END_S = 10.0


class Loop:
    """A loop under way."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def lines(self) -> list[str]:
        """What it has said so far."""
        return [json.loads(line)["message"] for line in self._log.read_text().splitlines() if line.endswith("}")]

    def says(self, text: str, after: int = 0) -> None:
        """Wait until it has said this, in a line after the first `after`."""
        wait_until(lambda: any(text in line for line in self.lines[after:]), f"says {text!r}: {self._log}")


@contextlib.contextmanager
def running(command: str, env: Mapping[str, str], folder: Path) -> Iterator[Loop]:
    """`driver-manager command` while the context lasts; what it said is shown with a failure."""
    log = folder / f"{command}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "driver_manager", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=out,
            env=dict(env),
        )
    try:
        yield Loop(process, log)
        assert process.poll() is None, f"{command} ended by itself"
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        finally:
            process.kill()
            process.wait(END_S)
            print(f"{command}:\n{log.read_text()}")
