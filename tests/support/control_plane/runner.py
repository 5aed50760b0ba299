"""Runs the command line as an init container would: own process, real API server, stand-in tools on a host tree."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from driver_manager.profiles import builtin
from driver_manager.sandbox.host import HostTree
from tests.support.control_plane.api import wait_until
from tests.support.control_plane.kubelet import DEPLOY_PREFIX, Node, Shown
from tests.support.control_plane.processes import Command, Ended, Running
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.servers import ControlPlane, User

_MODINFO = """\
#!/bin/sh
read -r facts 2>/dev/null < "$1"
case $facts in
    *\\\\*) exec {itself} "$@" ;;
    '{{"version": "'*'", "vermagic": "'*'", "depends": ['*']'*) ;;
    *) exec {itself} "$@" ;;
esac
field() {{
    value=${{facts#*"\\"$1\\": \\""}}
    printf '%-16s%s\\n' "$1:" "${{value%%\\"*}}"
}}
field version
field vermagic
needs=${{facts#*'"depends": ['}}
IFS='", '
for need in ${{needs%%]*}}; do names=${{names-}}${{need:+${{names:+,}}$need}}; done
printf '%-16s%s\\n' depends: "${{names-}}"
"""
_MODPROBE = """\
#!/bin/sh
case $1 in
    --dump-modversions) exit 0 ;;
    --show-depends)
        while read -r line; do
            case $line in */"$7".ko:*) exit 0 ;; esac
        done 2>/dev/null < "$3/lib/modules/$5/modules.dep" ;;
esac
exec {itself} "$@"
"""
_RBLN_SMI = """\
#!/bin/sh
read -r version 2>/dev/null < {module}/version || {{ echo "rbln-smi: no driver" >&2; exit 1; }}
printf '{answer}\\n' "$version"
"""
_ANSWER = '{"KMD_version": "%s", "devices": [{"npu": 0, "name": "RBLN-CA12", "status": "normal", "device": "rbln0"}]}'


def lighten(tree: HostTree) -> None:
    """Put them in place of the tools of a host, and of those of the drivers that are there."""
    for name, text in (("modinfo", _MODINFO), ("modprobe", _MODPROBE)):
        itself = tree.bin / f"{name}-itself"
        if not itself.exists():
            (tree.bin / name).rename(itself)
            _write(tree.bin / name, text.format(itself=shlex.quote(str(itself))))
    for smi in tree.root.rglob("rbln-smi"):
        _write(smi, _RBLN_SMI.format(module=shlex.quote(f"{tree.root}/sys/module/rebellions"), answer=_ANSWER))


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


PROFILES = builtin()
OLD, NEW = "1.2.92", "2.0.1"
OLD_ROOT, NEW_ROOT = "/opt/rbln/1.2.92", "/run/rbln/driver"
OLD_DIGEST, NEW_DIGEST = "digest-of-1.2.92", "digest-of-2.0.1"
JOURNAL = "rebellions.ai/npu-driver-manager.journal"
CORDON = "rebellions.ai/npu-driver-upgrade-cordon"
PREFIX = DEPLOY_PREFIX
PAUSED = "paused-for-driver-upgrade"
UPGRADE = "rebellions.ai/npu-driver-upgrade"
ENABLED, REQUESTED, UPGRADE_STATE = f"{UPGRADE}-enabled", f"{UPGRADE}-requested", f"{UPGRADE}-state"
SAFE_LOAD = f"{UPGRADE}.driver-wait-for-safe-load"
EVICT = {"ENABLE_NPU_POD_EVICTION": "true"}
ASCEND_ROOT, ASCEND_OLD = "/var/lib/Ascend/driver", "25.2.0"


class CommandRunner:
    """One node's host tree and the command line on it, which reaches the cluster through `proxy` if there is one.

    `through` is a command that starts it. `is_forked`: without an interpreter's start. Its maker sets `node`.
    """

    node: Node

    def __init__(
        self,
        plane: ControlPlane,
        user: User,
        folder: Path,
        profile: str = "rebellions",
        *,
        proxy: Proxy | None = None,
        through: tuple[str, ...] = (),
        is_forked: bool = True,
    ) -> None:
        self.through = through
        self.is_forked = is_forked
        self._plane = plane
        self._user = user
        self._proxy = proxy
        self._last_line = folder / "termination-log"
        self.tree = HostTree(folder / "host", folder / "bin", PROFILES[profile])
        self.tree.build()

    def with_upgrade(self) -> CommandRunner:
        """The old driver is loaded; the new one is installed, unless it takes a reboot."""
        if self.tree.profile.name == "ascend":
            self.tree.add_driver(ASCEND_ROOT, ASCEND_OLD)
            self.tree.load(ASCEND_ROOT)
            self.tree.record("old", ASCEND_ROOT, ASCEND_OLD)
            return self
        self.tree.add_driver(OLD_ROOT, OLD)
        self.tree.load(OLD_ROOT)
        self.tree.record(OLD_DIGEST, OLD_ROOT, OLD)
        self.tree.add_driver(NEW_ROOT, NEW)
        lighten(self.tree)
        return self

    def hold_unread(self) -> None:
        """Let a process have the device open whose files in /proc do not answer: no run knows whose it is."""
        process = self.tree.root / "proc/4343"
        process.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(process / "maps")
        self.tree.hold_device()

    def start(self, *arguments: str, **env: str) -> Command:
        if self.is_forked and not self.through:
            return self._plane.fork_server.start(list(arguments), self.environment(**env), self.new_last_line())
        return self.start_process(*arguments, **env)

    def start_process(self, *arguments: str, **env: str) -> Running:
        """As `start`, with an interpreter's start of its own."""
        argv = [*self.through, sys.executable, "-m", "driver_manager", *arguments]
        return Running(argv, self.environment(**env), self.new_last_line())

    def new_last_line(self) -> Path:
        self._last_line.write_text("")
        return self._last_line

    def environment(self, **env: str) -> dict[str, str]:
        server = self._proxy.url if self._proxy else None
        node = {} if "NODE_NAME" in env else {"NODE_NAME": self.node.name}
        return {
            "PATH": f"{self.tree.bin}{os.pathsep}{os.environ['PATH']}",
            **self._plane.service_account(self._user.token, server),
            "OPERATOR_NAMESPACE": "rbln-system",
            "HOST_ROOT": str(self.tree.root),
            "DRIVER_LOAD": "manager",
            "DRIVER_ROOT": NEW_ROOT,
            "DRIVER_CONFIG_DIGEST": NEW_DIGEST,
            "TERMINATION_LOG": str(self._last_line),
            "LOG_FORMAT": "json",  # also of commands that people type: the tests read lines
            **node,
            **env,
        }

    def run(self, *arguments: str, **env: str) -> Ended:
        return self.start(*arguments, **env).end()

    def reconcile(self, *arguments: str, **env: str) -> Ended:
        return self.run("reconcile-driver-state", *arguments, **env)


class RunnerFactory(Protocol):
    def __call__(
        self,
        labels: Mapping[str, str] | None = None,
        profile: str = "rebellions",
        *,
        user: User | None = None,
        proxy: Proxy | None = None,
    ) -> CommandRunner: ...


def assert_untouched(command_runner: CommandRunner, labels: dict[str, str], *, shows: Shown = ("ready", 0)) -> None:
    """The node is as it was before anything was taken, and shows how the last run ended."""
    node = command_runner.node
    assert node.shown() == shows
    assert node.labels() == labels
    assert JOURNAL not in node.annotations()
    assert CORDON not in node.annotations()
    assert "unschedulable" not in node.read()["spec"]


def start_and_take(command_runner: CommandRunner, **env: str) -> Command:
    run = command_runner.start("reconcile-driver-state", **env)
    wait_until(lambda: JOURNAL in command_runner.node.annotations(), "the node is taken")
    return run
