"""What a story of one node is made of: how host and cluster begin, what is run, and how it has to end.

Imports only the domain and the sandbox.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from enum import Enum

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.node_state import NodeState
from driver_manager.sandbox.cluster import SandboxCluster
from driver_manager.sandbox.host_tree import HostTree
from driver_manager.sandbox.pci_tree import PciTree

OLD, NEW = "1.2.92", "2.0.1"
OLD_DIGEST, NEW_DIGEST = "4d1f7c09a25e83b6", "9be2a06f4c31d758"


class Interference(Enum):
    """What the sandbox does to the run."""

    NONE = "none"
    KILL_WITHOUT_DRIVER = "SIGKILL once the old driver is unloaded, then run again"
    REBOOT_AFTER = "reboot the host after the run, then run again"
    CONSENT_AFTER = "after a run that is refused, allow it to restart clients, then run again"


class Scenario(Frozen):
    """One story. `labels` are extra node labels; `changed_labels` how labels have to differ at the end.

    `shows` is the state that the Node shows then, None where it shows none. `restarts` are the clients that are
    restarted, each once, as namespace/DaemonSet. `bus` is the PCI bus where it matters, and `devices_after` the driver
    that all devices have in the end, "" for none. `kernel` is what the kernel and the vendor's tool have to report, in
    this order; empty where nobody looks. `asks` is a command to run at the end, with its options.
    """

    name: str
    tells: str
    exit_code: ExitCode
    driver_after: str
    prepare: Callable[[HostTree], None]
    meddle: Callable[[SandboxCluster], None] = lambda _: None
    profile: str = "rebellions"
    labels: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    changed_labels: dict[str, str] = field(default_factory=dict)
    interference: Interference = Interference.NONE
    command: str = "reconcile-driver-state"
    bus: Callable[[HostTree], PciTree] | None = None
    devices_after: str | None = None
    shows: NodeState | None = NodeState.READY
    restarts: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
