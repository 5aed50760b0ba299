"""`sandbox --shell`: what is said before the shell begins in which driver-manager and kubectl work on the node."""

from __future__ import annotations

import sys

from driver_manager.cli.screens import Screen
from driver_manager.profiles import builtin
from driver_manager.sandbox.cluster import NODE
from driver_manager.sandbox.runner import Stay
from driver_manager.sandbox.shell import run_shell


def open_shell(stay: Stay, profile: str, screen: Screen) -> None:
    """Let somebody work on the node until they leave the shell."""
    screen.chapter(f"{NODE} is up until you leave this shell; driver-manager and kubectl work on it")
    for line in _suggestions(profile):
        screen.line(f"  {line}")
    screen.line("")
    sys.stdout.flush()
    run_shell(stay)


def _suggestions(profile: str) -> tuple[str, ...]:
    return (
        f"kubectl get nodes -L {builtin()[profile].keys.state}",
        "kubectl get pods -A",
        f"kubectl describe node {NODE}",
        "driver-manager status",
        "driver-manager holders",
        "driver-manager restore --dry-run",
        "FORCE_REINSTALL=true driver-manager reconcile-driver-state",
        "exit",
    )
