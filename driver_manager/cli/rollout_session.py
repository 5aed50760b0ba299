"""The outside of the verbs of a rollout: the way to the cluster, the profile, one look."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from driver_manager import profiles, settings
from driver_manager.adapters.kube.client import KubeApi, load_client
from driver_manager.adapters.kube.fleet_desk import KubeDesk, node_label_keys
from driver_manager.adapters.kube.fleet_objects import readers
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.cli.rollout_way import namespace_of, refuse_without_state
from driver_manager.cli.wiring import log_form
from driver_manager.cli.zones import zone
from driver_manager.core.fleet.looking import Sight, look
from driver_manager.domain.errors import ConfigError, ManagerError
from driver_manager.domain.fleet.model import Fleet
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.profile import Profile
from driver_manager.domain.setting import Values
from driver_manager.ports.base import Reporter
from driver_manager.ports.fleet import FleetDesk

R = TypeVar("R")


class RolloutSession(Frozen):
    """A cluster whose rollouts are looked at from outside of it."""

    values: Values
    desk: FleetDesk
    profile: Profile
    namespace: str
    clock: SystemClock
    log: Reporter

    def look(self, name: str) -> Sight:
        """The rollout that is meant, as it is now. Raises ManagerError."""
        return look(self.desk, self.namespace, name, clears_first=self.profile.container_unloads)

    def readable(self, name: str) -> tuple[Sight, Fleet]:
        """The same, for who changes something about it. Raises ManagerError, also where its spec cannot be read."""
        sight = self.look(name)
        if sight.fleet is None:
            problem = sight.rollout.problems[0]
            raise ConfigError(
                f"rollout {sight.rollout.key} cannot be read: {problem}", "Fix its spec with kubectl edit."
            )
        return sight, sight.fleet


def open_rollouts(
    values: Values,
    clock: SystemClock | None = None,
    log: Reporter | None = None,
    budget_s: float = settings.BY_HAND_API_TIMEOUT_S,
) -> RolloutSession:
    """Reach the cluster and pick the profile; each request may take `budget_s` seconds. Raises ManagerError."""
    found = clock or SystemClock()
    found.install()
    log = log or log_form(values).reporter(found.wall)
    api = KubeApi(load_client(values[settings.KUBECONFIG] or None), found, log, budget_s)
    profile = picked(values, api)
    desk = KubeDesk(api, readers(profile.keys, zone))
    return RolloutSession(values, desk, profile, namespace_of(values, profile), found, log)


def picked(values: Values, api: KubeApi) -> Profile:
    """The profile as named, else the one whose labels the Nodes carry. Raises ManagerError."""
    known = profiles.known(values[settings.PROFILE_FILE])
    wanted = values[settings.DRIVER_PROFILE]
    if wanted != profiles.AUTO:
        profile = profiles.pick(wanted, known, (), lambda _: False)
        refuse_without_state(profile)
        return profile
    serving = {name: one for name, one in known.items() if one.keys.upgrade_state}
    keys = node_label_keys(api)
    try:
        return profiles.pick(profiles.AUTO, serving, keys, lambda _: False)
    except ConfigError as error:
        option = settings.DRIVER_PROFILE
        raise ConfigError(
            f"the profile cannot be determined from the labels of the Nodes: {error.what.rpartition(': ')[2]}",
            f"Name it with {option.flag} ({option.env}).",
        ) from error


def if_readable(read: Callable[[], R], log: Reporter, what: str) -> R | None:
    """What `read` gives, None where it cannot be read: it is only shown, so that is a warning."""
    try:
        return read()
    except ManagerError as error:
        log.warn(f"{what} cannot be shown: {error.what}")
        return None
