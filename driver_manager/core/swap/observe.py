"""Reads everything one decision needs, once: at most two API requests and one look at the host.

Owns how we find out who we are, whose journal it is and which driver is wanted. Depends on ports and domain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from typing import Protocol, TypeVar

from driver_manager.domain import events
from driver_manager.domain.deadline import Deadline, Moment
from driver_manager.domain.digest import FROM_ENVIRONMENT, is_digest
from driver_manager.domain.errors import ApiRefused, ConfigError, ManagerError
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.host import UNREAD, Holder, Host
from driver_manager.domain.host_record import HostRecord
from driver_manager.domain.journal import Journal, Owner, Refused
from driver_manager.domain.modules import users_of
from driver_manager.domain.node import Node, is_this_host
from driver_manager.domain.observation import Observation, Part
from driver_manager.domain.pod import Claim, Pod, PodList
from driver_manager.domain.pods.journal_check import (
    Checked,
    journal_on,
    runs_manager,
    with_left,
    with_record,
    without_commands,
)
from driver_manager.domain.pods.operands import named
from driver_manager.domain.pods.workloads import names_of_claims, namespaces_with_claims
from driver_manager.domain.policy import Mode
from driver_manager.domain.profile import Profile
from driver_manager.domain.swap.node_patches import decoded_journal
from driver_manager.domain.swap.planner import wants_users
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.vfio_return import nodes_to_return
from driver_manager.domain.swap.vfio_rows import nodes_in_doubt
from driver_manager.ports.base import Reporter
from driver_manager.ports.node import Ports

HOLDERS_S = 60.0

T = TypeVar("T")


class Reading(Protocol):
    """Reads one part of the facts; decides what becomes of an error."""

    def __call__(self, part: Part, read: Callable[[], T], otherwise: T) -> T:
        """What `read` gives; `otherwise`, or the ManagerError that it raised, where it raised one."""
        ...


def strictly(part: Part, read: Callable[[], T], otherwise: T) -> T:
    """What `read` gives, with its errors: a decision needs every part."""
    return read()


class Identity(Frozen):
    """Who runs, as far as the environment tells. `pod_name_is_sure` is False where it is only the host name.

    `enclosing_uid` is the uid of the pod in whose cgroup we are, "" where that does not show.
    """

    pod_name: str = ""
    pod_name_is_sure: bool = False
    namespace: str = ""
    process: Owner = field(default_factory=Owner)
    enclosing_uid: str = ""


def own_pod(pods: PodList, node: Node, identity: Identity) -> Pod | None:
    """The pod we run in, None by hand. Raises ConfigError where we were told its name and it is not on the node."""
    named = [pod for pod in pods.pods if identity.pod_name and pod.name == identity.pod_name]
    here = [pod for pod in named if pod.namespace == identity.namespace]
    if here:
        return here[0]
    if identity.pod_name_is_sure:
        elsewhere = ", ".join(pod.namespace for pod in named)
        hint = f" (a pod of that name is in {elsewhere})" if elsewhere else ""
        raise ConfigError(
            f"our own pod {identity.namespace}/{identity.pod_name} is not on node {node.name}{hint}",
            "Set POD_NAME, POD_NAMESPACE (or OPERATOR_NAMESPACE) and NODE_NAME from the downward API; leave POD_NAME "
            "unset when run by hand.",
        )
    return named[0] if len(named) == 1 else None


def wanted_digest(configured: str, own: Pod | None, pods: PodList, profile: Profile) -> tuple[str, str]:
    """The wanted driver's digest and where it comes from; both "" when nothing tells. Raises ConfigError."""
    if configured:
        return _checked(configured, "the environment"), FROM_ENVIRONMENT
    if own is not None and (own.config_digest or profile.deploy.driver_key in own.selector_keys):
        return _digest_of(own), f"own pod {own}"
    drivers = [pod for pod in pods.pods if profile.deploy.driver_key in pod.selector_keys and not pod.is_over]
    if not drivers:
        return "", ""
    newest = max(drivers, key=lambda pod: (not pod.deleting, pod.created))
    return _digest_of(newest), f"driver pod {newest}"


def _digest_of(pod: Pod) -> str:
    if pod.config_digest:
        return _checked(pod.config_digest, f"pod {pod}")
    return hashlib.sha256(pod.main_container.encode()).hexdigest()


def _other_digest(own: Pod | None, wanted: str) -> str:
    """What the container that follows us in our own pod records, "" where that is what is `wanted`, or nobody knows."""
    is_init_container = own is not None and not own.main_started
    return own.main_digest if own is not None and is_init_container and own.main_digest != wanted else ""


def _checked(digest: str, where: str) -> str:
    """`digest`. Raises ConfigError for one that the state file could not hold."""
    if not is_digest(digest):
        raise ConfigError(
            f"DRIVER_CONFIG_DIGEST in {where} is not one printable word of at most 256 characters",
            "Fix it in the driver DaemonSet.",
        )
    return digest


def is_alive(  # noqa: PLR0913, PLR0917  # what the answer depends on
    journal: Journal,
    boot_id: str,
    pods: PodList,
    own: Pod | None,
    process_lives: Callable[[Owner], bool | None] | None,
    profile: Profile,
) -> bool | None:
    """Whether the journal's owner may still be at work; None where it cannot be told.

    That is so off the node (`process_lives` None), and of a pod in a namespace that could not be listed. `boot_id` is
    the node's boot, "" where it is not known. Another pod counts until it has left, and only if the manager runs in it.
    In our own pod a restarted container goes on where the last one ended, so there the process decides.
    """
    owner = journal.owner
    if owner.pod_uid and (own is None or own.uid != owner.pod_uid):
        if pods.namespace and owner.pod.partition("/")[0] != pods.namespace:
            return None
        return any(
            pod.uid == owner.pod_uid and not pod.has_left and runs_manager(pod, own, profile) for pod in pods.pods
        )
    if not owner.pid or (boot_id and owner.boot_id != boot_id):
        return False
    return process_lives(owner) if process_lives is not None else None


def report_refused(refused: Iterable[Refused], ports: Ports, said: set[str]) -> None:
    """Warn of each field of the journal that is ignored, and post an Event that names it; once for those in `said`."""
    for one in refused:
        if one.field not in said:
            said.add(one.field)
            ports.reporter.warn(str(one))
            ports.cluster.post_event(events.JOURNAL_FIELD_IGNORED, str(one), warning=True)


def warn_of_left(left: Iterable[HostRecord], reporter: Reporter, said: set[str]) -> None:
    """Warn of each record on the host that the node's journal does not name; once for those in `said`."""
    for one in left:
        if one.run not in said:
            said.add(one.run)
            reporter.warn(
                f"an ended run left a record on the host that the node's journal does not name; to undo: {one}"
            )


def _with_group_holders(now: Situation, ports: Ports) -> Situation:
    """With who has the devices open that are about to change hands; as it is where there are none."""
    nodes = nodes_in_doubt(now) if now.policy.mode is Mode.VFIO else nodes_to_return(now)
    if not nodes:
        return now
    found = ports.devices.holders(nodes, Deadline.after(HOLDERS_S, ports.clock.monotonic))
    return replace(now, obs=replace(now.obs, group_holders=named(found, now.obs.pods.pods)))


def look_closer(now: Situation, ports: Ports) -> Situation:
    """With the claims and the holders of the device too, where the driver is to be replaced; else as it is.

    Raises as `plan`, and ApiRefused where claims may not be listed and pods are to be evicted for them.
    """
    now = _with_group_holders(now, ports)
    if not wants_users(now):
        return now
    obs, rules = now.obs, now.policy.eviction
    namespaces = namespaces_with_claims(obs.pods.pods, now.profile, rules)
    claims: tuple[Claim, ...] | None = ()
    try:
        claims = ports.cluster.claims(namespaces, names_of_claims(obs.pods.pods)) if namespaces else ()
    except ApiRefused:
        if rules.is_enabled or rules.drains:
            raise
        claims = None
    count = users_of(now.host.modules)
    holders: tuple[Holder, ...] = ()
    if count:
        try:
            deadline = Deadline.after(HOLDERS_S, ports.clock.monotonic)
            holders = named(ports.host.holders(deadline, count), obs.pods.pods)
        except ManagerError as error:
            ports.reporter.warn(f"unknown which processes have the device open: {error.what}")
    for holder in holders:
        if holder.how == UNREAD:
            ports.reporter.warn(str(holder))
    return replace(now, obs=replace(obs, claims=claims or (), holders=holders, has_unread_claims=claims is None))


def observe(  # noqa: PLR0913  # the facts that become one value here
    node: Node,
    pods: PodList,
    profile: Profile,
    identity: Identity,
    *,
    digest: str,
    read_host: Callable[[Journal | None, str], Host | None],
    process_lives: Callable[[Owner], bool | None],
    reading: Reading = strictly,
    at: Moment | None = None,
) -> Observation:
    """All facts as one value. `read_host` is told the wanted digest and gives None where no host can be read; `at` is
    now.

    Raises JournalUnreadable, ConfigError (own pod not found, host unreadable), unless `reading` does not.
    """
    found = reading(Part.JOURNAL, lambda: journal_on(node, profile), None)
    own = reading(Part.OWN_POD, lambda: own_pod(pods, node, identity), None)
    wanted, source = reading(Part.DIGEST, lambda: wanted_digest(digest, own, pods, profile), ("", ""))
    host = reading(Part.HOST, lambda: read_host(found.journal if found is not None else None, wanted), None)
    if host is not None and not is_this_host(node, host.machine_id, host.boot_id):
        host = None
    if found is not None:
        found = (
            with_record(found, host.run_record, host.boot_id, profile) if host is not None else without_commands(found)
        )
    left = _left(host, process_lives) if host is not None else ()
    if host is not None and left:
        found = with_left(found or _lost_journal(node, profile, left), left, host, profile)
    journal, refused = (found.journal, found.refused) if found is not None else (None, ())
    return Observation(
        node=node,
        pods=pods,
        host=host,
        me=replace(identity.process, pod=str(own), pod_uid=own.uid) if own is not None else identity.process,
        own_pod=own,
        journal=journal,
        owner_alive=journal is not None
        and is_alive(
            journal,
            host.boot_id if host is not None else node.boot_id,
            pods,
            own,
            process_lives if host is not None else None,
            profile,
        ),
        digest=wanted,
        digest_source=source,
        installed_digest=_other_digest(own, wanted),
        enclosing_uid=identity.enclosing_uid,
        at=at or Moment(),
        refused=refused,
        left=left,
    )


def _left(host: Host, process_lives: Callable[[Owner], bool | None]) -> tuple[HostRecord, ...]:
    """The records that the node's journal does not name, of runs that have ended.

    A run writes its record before the patch that names it: what may still live is left alone.
    """
    owners = ((one, one.owner) for one in host.left_records)
    return tuple(one for one, owner in owners if owner is not None and process_lives(owner) is False)


def _lost_journal(node: Node, profile: Profile, left: tuple[HostRecord, ...]) -> Checked:
    """The journal of a run that left only its record on the host: with the labels that are paused, as they tell."""
    owner = left[-1].owner or Owner()
    return Checked(decoded_journal(node, profile, owner) or Journal(owner, ""))
