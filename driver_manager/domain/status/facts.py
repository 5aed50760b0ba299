"""What `status` could see, and what it could not. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from driver_manager.domain import node_state
from driver_manager.domain.errors import ManagerError
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.health.machine import HealthState
from driver_manager.domain.host import Holder, Host
from driver_manager.domain.kmm import KmmModule
from driver_manager.domain.node_state import LastOutcome, NodeState
from driver_manager.domain.observation import Observation, Part
from driver_manager.domain.pod import Pod
from driver_manager.domain.pods.client_record import ClientRecord
from driver_manager.domain.policy import Loader, Mode
from driver_manager.domain.probe_result import DeviceVerdict
from driver_manager.domain.profile import Profile
from driver_manager.domain.swap.plan import Plan


class DeviceHealth(Frozen):
    """What is known of the devices. `source` is `health-watch`, `probe`, or "" where nobody looked.

    `state` is health-watch's, None without it. `since_s` and `sampled_s` are in seconds since the epoch, None where
    they are not known; `sampled_s` is when the last sample was taken.
    """

    source: str = ""
    state: HealthState | None = None
    reason: str = ""
    since_s: float | None = None
    sampled_s: float | None = None
    has_stuck_probe: bool = False
    is_withdrawn: bool = False
    devices: tuple[DeviceVerdict, ...] = ()

    @property
    def is_wedged(self) -> bool:
        """Whether the host says that the driver does not serve its devices."""
        return self.state is HealthState.WEDGED or self.is_withdrawn


class StatusFacts(Frozen):
    """Everything that `status` shows. Where they could not be read, the Node in `obs` is empty, and so are its pods.

    `missing` has the errors of what could not be read.

    `verdict` is what a run would do, or why it would not. `now_s` is in seconds since the epoch. `reboot_waits_for` is
    the rebooter's own word, "" where it has none. `clients` is the driver generation with what was done about its
    clients, None where neither the host nor the Node knows one. `mode` is whom the user's label wants the devices for;
    `group_holders` have devices that are not with their own driver. `loader` is who loads the driver. `kmm` is what KMM
    is to load, None without it.
    """

    obs: Observation
    profile: Profile
    verdict: Plan | ManagerError
    now_s: float
    health: DeviceHealth = field(default_factory=DeviceHealth)
    missing: Mapping[Part, ManagerError] = field(default_factory=dict)
    reboot_waits_for: str = ""
    clients: ClientRecord | None = None
    mode: Mode = Mode.CONTAINER
    group_holders: tuple[Holder, ...] = ()
    kmm: KmmModule | None = None
    loader: Loader = Loader.CONTAINER

    @property
    def host(self) -> Host | None:
        """The host's side, None away from the node or where it cannot be read."""
        return self.obs.host

    @property
    def has_node(self) -> bool:
        """Whether the Node could be read."""
        return self.why_no_node is None

    @property
    def why_no_node(self) -> ManagerError | None:
        """Why the Node could not be read, None where it was."""
        return self.missing.get(Part.CLUSTER) or self.missing.get(Part.NODE)

    @property
    def state(self) -> NodeState | None:
        """The state that the Node shows."""
        return node_state.state_on(self.obs.node, self.profile.keys)

    @property
    def outcome(self) -> LastOutcome | None:
        """The outcome that the Node shows."""
        return node_state.outcome_on(self.obs.node, self.profile.keys)

    @property
    def driver_pods(self) -> tuple[Pod, ...]:
        """Pods on the node that the driver's deploy label places, and that have not ended."""
        key = self.profile.deploy.driver_key
        return tuple(pod for pod in self.obs.pods.pods if key in pod.selector_keys and not pod.is_over)

    @property
    def is_wedged(self) -> bool:
        """Whether the driver does not serve its devices: what the host says of it counts more than the Node."""
        is_shown = self.state is NodeState.WEDGED and self.health.state is None
        return self.health.is_wedged or is_shown

    @property
    def is_interrupted(self) -> bool:
        """Whether the node is taken by a run that has ended."""
        return self.obs.journal is not None and self.obs.owner_alive is False
