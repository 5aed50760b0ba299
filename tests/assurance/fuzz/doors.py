"""Targets at the doors of the process: the status server's requests, and the options as words and environment."""

from __future__ import annotations

import contextlib
import io
import os
import socket
from unittest.mock import patch

import psutil

from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.report.http import MAX_REQUEST_BYTES, Endpoint, Heartbeat, _Client
from driver_manager.cli.main import COMMANDS, run
from driver_manager.domain import settings
from driver_manager.domain.errors import ExitCode
from driver_manager.profiles import builtin
from tests.assurance.fuzz.host_trees import laid_out
from tests.assurance.fuzz.target import Form, Target, parts, parts_of
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.signals import signals_kept

MOST_TURNS = 100


def answer_request(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    clock, clients = LoopClock(), dict[int, _Client]()
    with ours, theirs:
        theirs.setblocking(False)
        theirs.sendall(data[: 3 * MAX_REQUEST_BYTES])
        theirs.shutdown(socket.SHUT_WR)
        _Client(clock, ours, Endpoint(Heartbeat(FakeClock(), 60.0)).respond, clients)
        for _ in range(MOST_TURNS):
            if not clients:
                break
            clock.turn(0.0)
        assert not clients, "the connection is never closed"
        with contextlib.suppress(ConnectionResetError):
            answer = theirs.recv(1 << 16)
            assert not answer or answer.startswith(b"HTTP/1.1 "), answer[:40]


# An existing file of the termination log's name would be written: it is what the option is for.
EVERY = (setting for _, group in settings.HEADINGS for setting in group)
SETTINGS = tuple(setting for setting in EVERY if setting.name != "termination_log")
WORDS = ("plan", "plan -o json", "status", "holders", "preflight", "restore --dry-run", "reconcile-driver-state")
LINES = [line.split() for line in (*WORDS, "health-watch --once", "health-watch --handover", "rebooter --dry-run")]
CODES = frozenset(int(code) for code in ExitCode) - {ExitCode.INTERNAL}
FIGURES = tuple(profile.paths.run_figures for profile in builtin().values())
"""What a run leaves even where it cannot reach its Node."""


def run_command(data: bytes) -> None:
    """The first byte picks the command; each part sets one variable. The way to the cluster leads nowhere."""
    assert {line[0] for line in LINES} <= COMMANDS.keys()
    argv = LINES[(data[:1] or bytes(1))[0] % len(LINES)]
    # Signal handlers, and the settings of psutil, are as before afterwards.
    with laid_out(b"", *FIGURES) as tree, signals_kept(), patch.object(psutil, "PROCFS_PATH", "/proc"):
        environment = {"PATH": "/nonexistent", "NODE_NAME": "node-1", "TERMINATION_LOG": ""}
        environment |= dict.fromkeys(("HOME", "HOST_ROOT"), str(tree.root))
        for number, value in parts_of(data[1:]):
            environment[SETTINGS[(number - 1) % len(SETTINGS)].env] = os.fsdecode(value)
        output = io.StringIO()
        speaking = contextlib.redirect_stdout(output), contextlib.redirect_stderr(output)
        with patch.dict(os.environ, environment, clear=True), speaking[0], speaking[1]:
            code = run(argv)
        assert code in CODES, f"exit {code}"
        assert "Traceback" not in output.getvalue()
        assert code == 0 or output.getvalue(), "a failure that says nothing"


AT = {setting.name: at for at, setting in enumerate(SETTINGS, 1)}
OPTIONS = (
    {"profile": "rebellions", "reconcile_deadline": "5m", "node_name": "node-1"},
    {"drain_pod_selector_label": "a in (b)", "metrics_addr": ":9400", "failures": "3"},
    {"reboot_windows": "Sat 02:00-06:00", "reboot_time_zone": "UTC", "profile": "ascend"},
    {"profile_file": "/dev/zero", "host_root": "/nowhere", "reboot_command": "a 'b c'"},
)
CHOSEN = [parts(*((AT[name], value) for name, value in chosen.items())) for chosen in OPTIONS]
COMMAND_LINES = tuple(bytes([number]) + chosen for number in range(len(LINES)) for chosen in CHOSEN)
REQUESTS = (
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /metrics?x HTTP/1.1\r\nAccept: application/openmetrics-text; version=1.0.0,text/plain;q=0.5\r\n\r\n",
    b"POST / HTTP/1.0\r\n\r\n",
)

TARGETS = (
    Target("http-request", answer_request, REQUESTS, Form.TEXT, allowed=(), runs=1_000),
    Target("command-line", run_command, COMMAND_LINES, Form.PARTS, allowed=(), runs=60),
)
