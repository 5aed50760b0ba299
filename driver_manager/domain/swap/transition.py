"""How one version of a driver becomes another: what the profile says of that pair, where it says anything. Pure."""

from __future__ import annotations

from dataclasses import replace

from driver_manager.domain.host import Host
from driver_manager.domain.modules import driver_version, has_root
from driver_manager.domain.policy import Loader, Mode, Policy
from driver_manager.domain.profile import ChangeBy, Profile, Strategy, Transition


def transition(host: Host, profile: Profile, policy: Policy) -> Transition | None:
    """What the profile says of the loaded version and the one that is to be loaded; None where nothing is loaded.

    Whoever leaves the load to a container does not know the new version, and virtual machines bring their own: only a
    pattern of all versions holds then.
    """
    if not profile.transitions or not has_root(host.modules, profile.modules):
        return None
    loads = policy.loader is Loader.MANAGER and policy.mode is not Mode.VFIO
    source = host.source if loads else None
    return profile.transition(driver_version(host.modules), source.version if source is not None else "")


def for_this_change(host: Host, profile: Profile, policy: Policy) -> Profile:
    """`profile` with the strategy that this change of versions takes."""
    found = transition(host, profile, policy)
    if found is None or found.strategy is ChangeBy.REFUSE:
        return profile
    return replace(profile, strategy=Strategy(found.strategy.value))
