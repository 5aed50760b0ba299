"""What a run does with staged drivers: which slot it loads, how the root gets there and back, and which slots go.

Nothing where the wanted driver is not staged. Pure. Must not import the planner, which builds its rows from these.
"""

from __future__ import annotations

from driver_manager.domain.listing import several
from driver_manager.domain.modules import driver_version
from driver_manager.domain.pod import Pod
from driver_manager.domain.pods.operands import placed_by
from driver_manager.domain.policy import Loader
from driver_manager.domain.staged import StagedSlot, StagedSlots, free_name, removable, slot_name
from driver_manager.domain.swap.driver_state import places_us
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.slots import FlipRoot, KeepRoot, RemoveSlots


def staged(now: Situation) -> tuple[StagedSlots, StagedSlot] | None:
    """All slots, and the one that this run loads the driver from; None where it loads none, or from elsewhere."""
    slots = now.host.slots
    if now.policy.loader is not Loader.MANAGER or slots is None or places_us(now):
        return None
    slot = slots.named(slots.wanted)
    return None if slot is None else (slots, slot)


def keep_root(now: Situation) -> tuple[KeepRoot, ...]:
    """Before anybody is disturbed: what is in a folder at the driver root becomes the way back."""
    found = staged(now)
    if found is None or found[0].in_root is None:
        return ()
    return (KeepRoot(found[0].root, _old_digest(now), _old_version(now)),)


def flip(now: Situation) -> tuple[FlipRoot, ...]:
    """Between the old modules and the new ones: the driver root leads to the new tree."""
    found = staged(now)
    if found is None:
        return ()
    slots, slot = found
    target, back = slots.path(slot.name), _way_back(now, slots)
    if slots.current == slot.name and back in ("", target):
        return ()
    return (FlipRoot(slots.root, target, slot.text, _kept(now, slots), "" if back == target else back),)


def remove_slots(now: Situation) -> tuple[RemoveSlots, ...]:
    """After the node is given back: the new slot stays, and the one before, and one more."""
    found = staged(now)
    if found is None:
        return ()
    slots, slot = found
    flips = flip(now)
    before = slots.name_of(flips[0].back) if flips else slots.previous
    names = removable(slots.slots, slot.name, before)
    return (RemoveSlots(slots.root, names),) if names else ()


def remove_left_over(now: Situation) -> tuple[RemoveSlots, ...]:
    """The same for a driver that is current: a run that was killed after its swap may not have come that far."""
    found = staged(now)
    is_there = found is not None and found[0].current == found[1].name
    return remove_slots(now) if is_there else ()


def stale_keys(now: Situation) -> frozenset[str]:
    """Deploy-label keys of operand pods that mount the driver root itself: they keep the tree that it leads to now."""
    flips = flip(now)
    if not flips or now.host.slots is None or now.host.slots.current == now.host.slots.wanted:
        return frozenset()
    own = now.obs.own_pod
    keys = now.profile.deploy_keys(now.obs.node.labels) - (own.selector_keys if own is not None else frozenset[str]())
    bound = (pod for pod in placed_by(now.obs.pods.pods, keys, own) if _mounts_root(pod, flips[0].root))
    return frozenset(key for pod in bound for key in pod.selector_keys & keys)


def notes(now: Situation) -> tuple[str, ...]:
    """What is worth a warning: pods that no label moves, and that will go on seeing the old tree."""
    flips = flip(now)
    if not flips:
        return ()
    own, keys = now.obs.own_pod, now.profile.deploy_keys(now.obs.node.labels)
    moved = placed_by(now.obs.pods.pods, keys, own)
    left = [
        pod
        for pod in now.obs.pods.pods
        if _mounts_root(pod, flips[0].root) and pod not in moved and not pod.has_left and pod != own
    ]
    if not left:
        return ()
    what = f"{several(left)} mount {flips[0].root}, and no label makes them leave"
    return (f"{what}: they see the old driver tree until they are restarted",)


def _mounts_root(pod: Pod, root: str) -> bool:
    """Whether a hostPath volume is the root, or something in it: a folder that holds the root shows where it leads."""
    return any(path == root or path.startswith(f"{root}/") for path in pod.host_paths)


def _kept(now: Situation, slots: StagedSlots) -> str:
    """The name that the folder at the root gets as a slot."""
    taken = (slot.name for slot in slots.slots)
    return free_name(slot_name(_old_digest(now)), taken) if slots.in_root is not None else ""


def _way_back(now: Situation, slots: StagedSlots) -> str:
    """Where the root led before, "" where that is not known."""
    if slots.in_root is not None:
        return slots.path(_kept(now, slots))
    if slots.current and slots.current != slots.wanted:
        return slots.path(slots.current)
    previous = now.host.previous_source
    if slots.current and previous is not None:
        # An earlier run has flipped it already.
        return previous.root if slots.name_of(previous.root) else previous.real_root
    return "" if slots.current else slots.leads_to


def _has_old_driver(now: Situation) -> bool:
    """Whether a folder at the root may have the driver that is loaded: not where its files were replaced since."""
    slots, previous = now.host.slots, now.host.previous_source
    if slots is None or slots.in_root is None or not driver_version(now.host.modules):
        return True
    if previous is None:
        return False
    return slots.root in (previous.root.rstrip("/"), previous.real_root) or bool(slots.name_of(previous.root))


def _old_digest(now: Situation) -> str:
    """Of the driver that the root has now, "" where nobody noted it."""
    if not _has_old_driver(now):
        return ""
    # Of whatever boot: a reboot in between changes nothing in a folder on disk.
    old = now.obs.journal.driver if now.obs.journal is not None else None
    noted = old.digest if old is not None else now.host.digest
    # A reboot may have taken what was noted elsewhere.
    recorded = now.host.slots.in_root if now.host.slots is not None else None
    return noted or (recorded.digest if recorded is not None else "")


def _old_version(now: Situation) -> str:
    if not _has_old_driver(now):
        return ""
    previous = now.host.previous_source
    return driver_version(now.host.modules) or (previous.version if previous is not None else "")
