"""What would make the run fail, found before anything is changed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from driver_manager.domain.model import Host, Loader, Policy
from driver_manager.domain.profile import Profile


@dataclass(frozen=True)
class Problem:
    """Something that would stop the run, and what to do about it."""

    what: str
    remedy: str


def problems(host: Host, profile: Profile, policy: Policy) -> tuple[Problem, ...]:
    """Everything that is known to stop a run that has to load or replace the driver."""
    return (*_deadline(policy), *_source(host, policy), *_conflicts(host, profile))


def _deadline(policy: Policy) -> tuple[Problem, ...]:
    budget_s = policy.pod_termination_timeout_s + policy.device_free_timeout_s
    if policy.deadline_s >= budget_s:
        return ()
    return (
        Problem(
            f"the deadline of {policy.deadline_s:g} s is shorter than the waits it has to hold ({budget_s:g} s)",
            "Raise RECONCILE_DEADLINE, or lower POD_TERMINATION_TIMEOUT or DEVICE_FREE_TIMEOUT.",
        ),
    )


def _source(host: Host, policy: Policy) -> tuple[Problem, ...]:
    if policy.loader is Loader.CONTAINER:
        return ()
    if host.source is None:
        return (Problem("there is no driver root to load from", "Set DRIVER_ROOT to the root of a driver tree."),)
    if host.source.problem:
        return (Problem(host.source.problem, host.source.remedy),)
    return ()


def _conflicts(host: Host, profile: Profile) -> tuple[Problem, ...]:
    return tuple(
        Problem(
            f"module {name} is loaded and conflicts with the {profile.name} driver",
            f"Blacklist {name} on the host and reboot, or unload it by hand.",
        )
        for name in host.conflicting
    )
