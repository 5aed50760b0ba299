"""A container of the sandbox's pods: the real command line as its own process, and what is in its environment.

Owns how such a process starts, what it says, and how it ends. What it is and where it runs is the caller's.
Must not import anything but the standard library and the host tree.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from driver_manager.sandbox.host_tree import HostTree


def environment(tree: HostTree, kubeconfig: Path, node: str, env: dict[str, str]) -> dict[str, str]:
    """What the container of a driver-manager has on the host `tree`, and `env`."""
    return {
        "PATH": f"{tree.bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "LC_ALL": "C.UTF-8",
        "KUBECONFIG": str(kubeconfig),
        "NODE_NAME": node,
        "HOST_ROOT": str(tree.root),
        "LOG_FORMAT": "text",
        "TERMINATION_LOG": str(tree.root / "termination-log"),
        **env,
    }


class Container:
    """One process from its start on. `say` gets each line of it, and `ended` its exit status, negative for a signal."""

    def __init__(
        self,
        command: Sequence[str],
        env: dict[str, str],
        folder: Path,
        say: Callable[[str], None],
        ended: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._say = say
        self._ended = ended
        self._process = subprocess.Popen(
            [sys.executable, "-m", "driver_manager", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
            cwd=folder,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def has_ended(self) -> bool:
        """Whether it ended, by itself or otherwise."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Tell it to end, and wait for nothing."""
        self._process.terminate()

    def terminate(self, timeout_s: float) -> int:
        """Tell it to end, as a kubelet does; its exit status. It is killed after `timeout_s` seconds."""
        self.stop()
        return self.wait(timeout_s)

    def wait(self, timeout_s: float) -> int:
        """Its exit status, once it has ended and all that it said was told. It is killed after `timeout_s` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self.kill()

    def kill(self) -> int:
        """It is gone, as everything is when the power is; its exit status."""
        self._process.kill()
        status = self._process.wait()
        if threading.current_thread() is not self._reader:
            self._reader.join()
        return status

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101  # a pipe was asked for
        # Where nobody reads any more, the story's own next line says so.
        with self._process.stdout as lines, contextlib.suppress(BrokenPipeError):
            for line in lines:
                self._say(line.rstrip())
        self._ended(self._process.wait())
