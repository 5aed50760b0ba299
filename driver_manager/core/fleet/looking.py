"""One look at a rollout, for whoever asks by hand: its object and all facts that a decision about it is made from.

Owns which rollout is meant, and when all that is needed has been listed. Decides nothing. Depends on ports only.
"""

from __future__ import annotations

from driver_manager.core.fleet.world import FleetWorld
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.fleet.fields import KIND
from driver_manager.domain.fleet.model import Fleet
from driver_manager.domain.fleet.reading import RolloutObject
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.listing import several
from driver_manager.ports.fleet import FactKind, FleetDesk, Subject


class Sight(Frozen):
    """A rollout and the facts about it; `fleet` is None where the object asks for what nobody can read."""

    rollout: RolloutObject
    fleet: Fleet | None


def look(desk: FleetDesk, namespace: str, name: str, *, clears_first: bool) -> Sight:
    """The rollout called `name`, where that is "" the only one there is. Raises ConfigError, and as the port."""
    world = FleetWorld(namespace, clears_first=clears_first)
    known: set[Subject] = set()

    def see(subjects: frozenset[Subject]) -> bool:
        """Whether something was still to be listed."""
        missing = sorted(subjects - known, key=str)
        for subject in missing:
            world.apply(desk.listed(subject))
        known.update(missing)
        return bool(missing)

    see(frozenset({world.of(FactKind.ROLLOUTS)}))
    rollout = chosen(world, namespace, name)
    if rollout.policy is None:
        return Sight(rollout, None)
    while see(world.needed(rollout.policy)):
        continue
    return Sight(rollout, world.fleet(rollout, rollout.policy))


def chosen(world: FleetWorld, namespace: str, name: str) -> RolloutObject:
    """The rollout that is meant, of those that are known. Raises ConfigError."""
    rollouts = {one.name: one for one in world.rollouts()}
    if name in rollouts:
        return rollouts[name]
    if len(rollouts) == 1 and not name:
        return next(iter(rollouts.values()))
    if not rollouts:
        raise ConfigError(f"there is no {KIND} in namespace {namespace}", "Use another namespace with -n.")
    names = several(sorted(rollouts))
    if name:
        raise ConfigError(f"there is no {KIND} {name} in namespace {namespace}", f"Use one of: {names}.")
    raise ConfigError(f"namespace {namespace} has {len(rollouts)} rollouts", f"Use one of: {names}.")
