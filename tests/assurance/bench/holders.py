"""Measures how long it takes to find a device's holders on a host with 5,000 processes more."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.control_plane.objects import create_node
from tests.support.control_plane.runner import CommandRunner
from tests.support.control_plane.servers import ControlPlane

PROCESSES = 5_000
SPAWN = 'i=0; while [ $i -lt "$1" ]; do sleep 300 & i=$((i+1)); done; echo spawned; wait'
DEVICE = "/dev/full"


@contextlib.contextmanager
def many_processes() -> Iterator[None]:
    """5,000 sleeping processes, in a session of their own that ends with the context."""
    argv = ["sh", "-c", SPAWN, "sh", str(PROCESSES)]
    shell = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True, text=True)
    try:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "spawned\n"
        yield
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def measure_holders(plane: ControlPlane, folder: Path, runs: int) -> list[float]:
    """Seconds of `driver-manager holders`, start of the process included, with one holder among all processes."""
    command_runner = CommandRunner(plane, plane.agent_with_events, folder, is_forked=False).with_upgrade()
    command_runner.tree.hold_device()
    shipped = Path("driver_manager/profiles/rebellions.toml").read_text()
    own = folder / "own.toml"
    own.write_text(shipped.replace('"/dev/rbln[0-9]*", "/dev/rsd[0-9]*"', f'"{DEVICE}"'))
    seconds = []
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(plane.api(plane.admin))
        boot_id = (
            Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        )  # this machine is the node: its /proc is read
        command_runner.node = create_node(stack, api, {}, boot_id=boot_id)
        stack.enter_context(many_processes())
        stack.enter_context(Path(DEVICE).open("rb"))
        env = {"PROFILE_FILE": str(own), "DRIVER_PROFILE": "rebellions", "PROC_ROOT": "/proc", "DEV_ROOT": "/dev"}
        for _ in range(runs):
            begun_s = time.monotonic()
            ended = command_runner.run("holders", **env)
            seconds.append(time.monotonic() - begun_s)
            if ended.code or str(os.getpid()) not in ended.out:
                raise SystemExit(f"the holder was not found: {ended.err}{ended.out}")
    return seconds
