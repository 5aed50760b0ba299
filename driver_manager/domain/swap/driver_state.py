"""Whether the driver that this host has is the wanted one: the questions that every row of the plan asks first.

Pure, like all of `domain`.
"""

from __future__ import annotations

from driver_manager.domain.digest import differing
from driver_manager.domain.errors import ConfigError, OwnedElsewhere
from driver_manager.domain.host import Host
from driver_manager.domain.journal import Journal
from driver_manager.domain.kmm import KmmModule
from driver_manager.domain.modules import has_root
from driver_manager.domain.node import Node
from driver_manager.domain.observation import Observation
from driver_manager.domain.profile import Profile
from driver_manager.domain.swap.situation import Situation


def is_host_driver(now: Situation) -> bool:
    """Whether the host has a driver of its own. A digest, or a record that knows a driver, is an installer's trace.

    The journal of an observation knows a driver by the host's record alone, never by what the Node says.
    """
    traced = (
        now.host.digest is not None
        or bool(now.host.digest_problem)
        or (now.obs.journal is not None and now.obs.journal.driver)
    )
    return bool(now.host.host_driver) and not traced


def places_us(now: Situation) -> str:
    """The deploy label of a run that only uninstalls, "" for one that is about the driver it belongs to.

    The manager's command is the init container of other operands, too, that want the driver out of the way and bring
    none themselves (vfio-manager, vgpu-manager): their pods are placed by another deploy label than the driver's.
    """
    own, deploy = now.obs.own_pod, now.profile.deploy
    if own is None or not deploy.prefix or deploy.driver_key in own.selector_keys:
        return ""
    return next((key for key in sorted(own.selector_keys) if key.startswith(deploy.prefix)), "")


def is_loaded(host: Host, profile: Profile) -> bool:
    """Whether the driver is in the kernel: any of the profile's root modules."""
    return has_root(host.modules, profile.modules)


def why_replace(now: Situation) -> str:
    """Why the loaded driver has to be replaced, or only to go; "" when it is current.

    Raises ConfigError without a digest to compare.
    """
    if key := places_us(now):
        return f"pod {now.obs.own_pod}, which is placed by {key}, needs the driver uninstalled"
    if now.policy.force_reinstall:
        return "a reinstall was forced"
    if not now.obs.digest:
        raise ConfigError(
            "the wanted driver is unknown: no DRIVER_CONFIG_DIGEST, and no driver pod on this node to read it from",
            "Set DRIVER_CONFIG_DIGEST (or --driver-config-digest) as in the driver DaemonSet.",
        )
    if now.host.digest_problem:
        return f"the recorded digest is unusable: {now.host.digest_problem}"
    if now.host.digest is None:
        return "no digest was recorded for the loaded driver"
    if now.host.digest != now.obs.digest:
        recorded, wanted, hint = differing(now.host.digest, now.obs.digest)
        return f"recorded digest {recorded} differs from the wanted {wanted}{hint}"
    return ""


def is_owned_elsewhere(obs: Observation, *, take_over: bool) -> bool:
    """Whether the journal belongs to another run that may still live and `take_over` is not asked."""
    journal = obs.journal
    return not (journal is None or take_over or obs.owner_alive is False or journal.owner == obs.me)


def refuse_if_owned(obs: Observation, *, take_over: bool) -> None:
    """Raise OwnedElsewhere when the journal belongs to another run that still lives and `take_over` is not asked."""
    journal = obs.journal
    if journal is None or not is_owned_elsewhere(obs, take_over=take_over):
        return
    doubt = (
        "which is still running" if obs.owner_alive else "and this host cannot determine whether it is still running"
    )
    raise OwnedElsewhere(
        f"node {obs.node.name} is taken by {journal.owner}, {doubt}",
        "Wait for it: a pod resumes by itself when its container restarts. Use --take-over once you are sure that it "
        "has stopped.",
    )


def refuse_kmm_at_work(journal: Journal | None, node: Node, ours: KmmModule | None = None) -> None:
    """Raise ConfigError where a run has asked KMM for something, and KMM is not done; `ours` is what we wait for."""
    request = journal.kmm if journal is not None else None
    if request is None or not request.module.is_changing(node.labels):
        return
    module = request.module
    if ours is None or ours.asked_key != module.asked_key:
        raise ConfigError(
            f"KMM was asked for version {module.version} of {module} and may change modules at any moment "
            f"({module.shown(node.labels)})",
            f"Continue with DRIVER_LOAD=kmm and KMM_MODULE={module}; or clear the node of users, remove the label "
            f"{module.asked_key}, and wait until KMM has removed its own two.",
        )
