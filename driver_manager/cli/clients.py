"""The end of a run that loads the driver itself: clients of the one before are restarted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from driver_manager.adapters.host.client_notes import HostClientNotes
from driver_manager.adapters.host.holders import whose
from driver_manager.cli.wiring import Session
from driver_manager.core.pods.clients import NOT_LOADED, ClientRestarter
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ManagerError
from driver_manager.domain.pod import Pod
from driver_manager.domain.pods import client_record
from driver_manager.domain.pods.clients import ClientRules, is_client
from driver_manager.domain.policy import Loader, Policy
from driver_manager.ports.clients import ClientNotes

CLIENTS_S = 60.0
"""What a run may take for it beyond its work: health-watch goes on with what is left."""


def restart_clients(session: Session, wanted: Policy, pods: Iterable[Pod]) -> None:
    """Restart the clients of a driver that this run, or one before, has loaded. Never raises a ManagerError.

    `pods` are those that the run saw on the node: without a client among them, and without one that an earlier run has
    not finished with, nothing is asked of the API server. One that came meanwhile is health-watch's to find, or the
    next run's. A driver that its container loads is not ready yet: health-watch sees when it is.
    """
    rules = ClientRules.of(session.profile, wanted.eviction.clients, whose(Path("/proc/self"))[0])
    if wanted.loader not in (Loader.MANAGER, Loader.KMM):
        return
    clock, log, withdrawn = session.clock, session.log, session.profile.paths.ready_withdrawn
    if withdrawn and session.roots.files().exists(withdrawn):
        return  # a wedged driver serves nobody: health-watch goes on once it does
    notes = HostClientNotes(session.roots, session.profile, clock)
    try:
        if not any(is_client(pod, rules) for pod in pods) and not _is_left(notes, rules):
            return
        turn = ClientRestarter(session.cluster, notes, clock, log, rules).until(
            Deadline.after(CLIENTS_S, clock.monotonic)
        )
    except ManagerError as error:
        log.warn(f"clients of the driver are not restarted: {error.what}. {error.remedy}")
        return
    if not turn.is_over and turn.problem != NOT_LOADED:
        log.warn(f"not every client of the driver was restarted: {turn.undone}; health-watch or the next run continues")


def _is_left(notes: ClientNotes, rules: ClientRules) -> bool:
    """Whether a turn ended in the middle: the client that it evicted is gone, and its successor may be yet to come."""
    record = client_record.recorded(notes.recall())
    return record is not None and not record.is_settled(rules)
