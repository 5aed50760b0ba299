"""The steps that load a driver, what they go back to when it does not load, and the preflight before them.

Pure. Must not import the planner, which builds its rows from these.
"""

from __future__ import annotations

from driver_manager.domain.errors import PreflightFailed
from driver_manager.domain.journal import OldDriver
from driver_manager.domain.model import Host, Loader, Observation, Policy
from driver_manager.domain.modules import beside
from driver_manager.domain.profile import Profile
from driver_manager.domain.swap.plan import AnyStep
from driver_manager.domain.swap.preflight import problems, remedies
from driver_manager.domain.swap.steps.modules import LoadModules, RecordDigest


def loading(obs: Observation, host: Host, profile: Profile, policy: Policy) -> list[AnyStep]:
    """Steps that load the wanted driver and record its digest; none where its container does."""
    if policy.loader is Loader.CONTAINER or host.source is None:
        return []
    paths = profile.paths
    return [
        LoadModules(
            host.source, host.previous_source, _digest_to_go_back_to(obs, host), _further_modules(obs, host, profile)
        ),
        *([RecordDigest(paths.state_file, obs.digest, paths.load_record, host.source)] if obs.digest else []),
    ]


def _old_driver(obs: Observation, host: Host) -> OldDriver | None:
    """What the journal of this boot knows of the driver to go back to."""
    journal = obs.journal
    return journal.driver if journal is not None and journal.boot_id == host.boot_id else None


def _further_modules(obs: Observation, host: Host, profile: Profile) -> tuple[str, ...]:
    """Modules of the driver that were loaded beside its roots, in the order to load those again that are not back."""
    # Of whatever boot: a reboot in between takes them away as an unload does.
    old, roots = obs.journal.driver if obs.journal else None, profile.modules.roots
    if old is None:
        return beside(host.modules, roots)
    return tuple(name for name in reversed(old.modules) if name not in roots)


def _digest_to_go_back_to(obs: Observation, host: Host) -> str:
    old = _old_driver(obs, host)
    return old.digest if old is not None else host.digest or ""


def check(host: Host, profile: Profile, policy: Policy) -> None:
    """Raise PreflightFailed, which names every problem, when the driver could not be replaced or loaded."""
    found = problems(host, profile, policy)
    if found:
        what = "; ".join(problem.what for problem in found)
        raise PreflightFailed(f"preflight: {what}", remedies(found))
