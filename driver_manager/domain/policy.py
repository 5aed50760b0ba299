"""What the user asks a run for: who loads the driver, whom it may disturb, how long it may wait. Pure."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from driver_manager.domain.frozen import Frozen
from driver_manager.domain.kmm import KmmModule
from driver_manager.domain.selectors import Selector


class Loader(Enum):
    """Who loads the driver."""

    CONTAINER = "container"
    MANAGER = "manager"
    KMM = "kmm"
    NONE = "none"
    """The host itself, which ships it in its image: a run only looks."""


class Mode(Enum):
    """Whom the devices are to serve."""

    CONTAINER = "container"
    """Containers, through the vendor's driver."""
    VFIO = "vfio"
    """Virtual machines, which bring their own."""


class EvictionRules(Frozen):
    """What may be done to users' pods. Times in seconds; `drain_timeout_s` 0 is what is left of the run's deadline.

    `is_enabled`: pods that use the accelerator. `drains`: the whole node, where that does not suffice. `forces`: pods
    that no controller makes anew. `deletes_empty_dirs`: pods whose data goes with them. `evicts_holders`: pods that
    have the device open without having asked for it. `device_classes` stand in for the profile's, where given.
    `clients`: pods that are clients of the driver, beside the profile's; `restarts_clients`: those that have the device
    open may be evicted right before the unload.
    """

    is_enabled: bool = False
    forces: bool = False
    deletes_empty_dirs: bool = False
    evicts_holders: bool = False
    timeout_s: float = 300.0
    drains: bool = False
    drain_selector: Selector = field(default_factory=Selector)
    drain_timeout_s: float = 0.0
    device_classes: tuple[str, ...] = ()
    clients: Selector = field(default_factory=Selector)
    restarts_clients: bool = False


class Policy(Frozen):
    """What the user wants, apart from the facts. Times in seconds.

    `driver_version` is the version that a host has to have loaded that loads its driver itself, "" where none is named.
    `completion`: pods that may end by themselves before anything is evicted. `retry_wait_s` is the longest wait before
    somebody is disturbed again after a failure that nothing has changed since. `driver_pod_leaves`: the driver pod
    that is on the node now is not there any more when the driver is swapped. `clear_for`: nothing is swapped, the node
    is only cleared for a driver pod of this revision. `binds`: who gives devices to virtual machines also binds them;
    else the container after it does. `kmm` is what KMM is to load, None where another loads.
    """

    loader: Loader = Loader.CONTAINER
    driver_version: str = ""
    force_reinstall: bool = False
    no_wait: bool = False
    take_over: bool = False
    driver_pod_leaves: bool = False
    clear_for: str = ""
    stop_host_services: bool = False
    eviction: EvictionRules = field(default_factory=EvictionRules)
    completion: Selector = field(default_factory=Selector)
    completion_timeout_s: float = 300.0
    safe_load: bool = False
    operator_timeout_s: float = 600.0
    ignore_skip: bool = False
    pod_termination_timeout_s: float = 300.0
    device_free_timeout_s: float = 60.0
    deadline_s: float = 1800.0
    retry_wait_s: float = 1800.0
    mode: Mode = Mode.CONTAINER
    binds: bool = True
    kmm: KmmModule | None = None
