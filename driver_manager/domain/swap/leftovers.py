"""What an earlier driver left on the host, and what of it may go before another one comes.

Pure. Must not import the planner, which builds its rows from these.
"""

from __future__ import annotations

from driver_manager.domain.policy import Loader, Mode
from driver_manager.domain.profile import Profile
from driver_manager.domain.swap.plan import AnyStep
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.mounts import RemoveArtifacts, UnmountDriverRoot


def is_installing(now: Situation) -> bool:
    """Whether a driver container is at work, whose modules and root are not stale; never in its own init container.

    Where devices go to virtual machines such a pod leaves before anything is cleaned.
    """
    if now.policy.loader is Loader.MANAGER or now.policy.mode is Mode.VFIO:
        return False
    pods = (pod for pod in now.obs.pods.pods if now.profile.deploy.driver_key in pod.selector_keys and not pod.is_over)
    return any(pod.main_started for pod in pods)


def clean(now: Situation, paths: tuple[str, ...]) -> list[AnyStep]:
    """Unmount what is mounted at the driver root, unless it is in use; remove those of `paths` that are there."""
    steps: list[AnyStep] = []
    wanted = [
        source.real_root or source.root for source in (now.host.source, now.host.previous_source) if source is not None
    ]
    is_source = now.policy.loader is Loader.MANAGER and any(
        _overlap(root, mount) for root in wanted for mount in now.host.root_mounts
    )
    if now.host.root_mounts and not is_source and not is_installing(now):
        steps.append(UnmountDriverRoot(now.host.root_mounts))
    return [*steps, *remove(now, paths)]


def remove(now: Situation, paths: tuple[str, ...]) -> tuple[RemoveArtifacts, ...]:
    """The step that removes those of `paths` that are there; () where none is."""
    ready = ready_names(now.profile)
    # Health-watch may put the ready marker aside, or back, between our look and our lock: both names go then.
    either = ready if any(path in now.host.artifacts for path in ready) else ()
    present = tuple(path for path in paths if path and (path in now.host.artifacts or path in either))
    return (RemoveArtifacts(present),) if present else ()


def driver_files(profile: Profile) -> tuple[str, ...]:
    """What speaks of a driver that is gone, or of a run that could not replace it."""
    paths = profile.paths
    return (*paths.artifacts, *ready_names(profile), paths.state_file, paths.failure_note)


def ready_names(profile: Profile) -> tuple[str, str]:
    """The ready marker, and the same put aside by health-watch: neither says anything of the next driver."""
    return profile.paths.ready_marker, profile.paths.ready_withdrawn


def _overlap(root: str, mount: str) -> bool:
    """Whether a tree at `root` would lose something if `mount` went."""
    one, other = root.rstrip("/") + "/", mount.rstrip("/") + "/"
    return one.startswith(other) or (other.startswith(one) and root != "/")
