"""The end of a run that loads the driver itself: clients of the one before are restarted."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from driver_manager.adapters.host.client_notes import HostClientNotes
from driver_manager.adapters.host.holders import whose
from driver_manager.cli.wiring import Session
from driver_manager.core.pods.clients import NOT_LOADED, ClientRestarter
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ManagerError
from driver_manager.domain.pod import Pod
from driver_manager.domain.pods.clients import ClientRules
from driver_manager.domain.policy import Loader, Policy

CLIENTS_S = 60.0
"""What a run may take for it beyond its work: health-watch goes on with what is left."""


def restart_clients(session: Session, wanted: Policy, pods: Collection[Pod]) -> None:
    """Restart the clients of a driver that this run, or one before, has loaded. Never raises a ManagerError.

    `pods` are those that the run saw on the node. A client that came meanwhile is health-watch's to find, or the next
    run's. A driver that its container loads is not ready yet: health-watch sees when it is.
    """
    if wanted.loader not in (Loader.MANAGER, Loader.KMM):
        return
    clock, log, withdrawn = session.clock, session.log, session.profile.paths.ready_withdrawn
    if withdrawn and session.roots.files().exists(withdrawn):
        return  # a wedged driver serves nobody: health-watch goes on once it does
    notes = HostClientNotes(session.roots, session.profile, clock)
    rules = ClientRules.of(session.profile, wanted.eviction.clients, whose(Path("/proc/self"))[0])
    try:
        turn = ClientRestarter(session.cluster, notes, clock, log, rules).after_run(
            pods, Deadline.after(CLIENTS_S, clock.monotonic)
        )
    except ManagerError as error:
        log.warn(f"clients of the driver are not restarted: {error.what}. {error.remedy}")
        return
    if not turn.is_over and turn.problem != NOT_LOADED:
        log.warn(f"not every client of the driver was restarted: {turn.undone}; health-watch or the next run continues")
