"""Targets that forge state: a journal and annotations on a Node, and records on its host, of the right types.

The input chooses the values, so that each journal and record can be read. Then whole runs go over them, on the fakes.
A finding is an effect on the host that no honest run of the same profile has, killed wherever it may be, or a reboot
without a grant in the record of the host.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar

from msgspec.structs import replace

from driver_manager.domain import host_record
from driver_manager.domain.host_record import HostRecord
from driver_manager.domain.journal import Journal, OldDriver, Owner, encode
from driver_manager.domain.observation import Loader, Policy
from driver_manager.domain.pci import Binding
from driver_manager.domain.profile import RUN_RECORD
from driver_manager.domain.reboot import state as reboot_record
from driver_manager.domain.reboot.state import Pending, RebootPolicy, RebootRequest, Record
from tests.assurance.fuzz.target import Form, Target
from tests.support.fakes.builders import ASCEND, EXPORTER, NEW_DIGEST, OLD_DIGEST, PAUSED, PLUGIN
from tests.support.fakes.pci import function
from tests.support.fakes.reboot_world import KEYS, Fleet
from tests.support.fakes.scenarios import GATE, OLD_ROOT, replace_with_more_of_the_profile
from tests.support.fakes.world import World

EVIL_ROOT, EVIL_VERSION = "/var/lib/kubelet/pods/6f1c/volumes/kubernetes.io~empty-dir/scratch", "6.6"
RUN, BOOT = "boot-1:1:99:99", "boot-1"
SERVICE, DEVICE = "rbln_daemon.service", function().address
WORDS = (
    "", "true", "false", PAUSED, f"gold_{PAUSED}", "gold", "\n", "-C/x", "../x", "/", "reboot.target", "dccp",
    EVIL_ROOT, OLD_ROOT, "/opt/new", SERVICE, "generic_npu", "rebellions", "rebellions_peer", "usb_storage", "1.0",
    "2.0", EVIL_VERSION, BOOT, "boot-0", OLD_DIGEST, NEW_DIGEST, "\x1b[2J", PLUGIN, EXPORTER, GATE,
    "example.com/foo", "kubernetes.io/hostname", "driver-a", "rbln-system/driver-a", RUN, "rebellions.depth",
    "rebellions.x", "1\ninstall rebellions /usr/bin/touch /x", "driver-manager", "vfio-pci", DEVICE, "0000:00:1f.0",
    "x" * 70, "é",
)  # fmt: skip
NUMBERS = (0, 1, 7, 65_535, 2**31)
RUNS = 3

T = TypeVar("T")


class Choices:
    """What the bytes of an input choose, one after the other; where they end, the first of what there is."""

    def __init__(self, data: bytes) -> None:
        self._left = iter(data)

    def one(self, among: Sequence[T]) -> T:
        return among[next(self._left, 0) % len(among)]

    def word(self, *likely: str) -> str:
        """Any word, or half of the time one that an honest run might have written."""
        return self.one(likely or WORDS) if self.one((True, False)) else self.one(WORDS)

    def words(self, *likely: str) -> tuple[str, ...]:
        return tuple(self.word(*likely) for _ in range(self.one(range(4))))

    def texts(self, *likely: str) -> dict[str, str]:
        return {word: self.one(WORDS) for word in self.words(*likely)}

    def driver(self) -> OldDriver | None:
        if not self.one((True, False)):
            return None
        version, root = self.word("1.0", EVIL_VERSION), self.word(OLD_ROOT, EVIL_ROOT)
        modules, digest = self.words("rebellions", "generic_npu"), self.word(OLD_DIGEST)
        return OldDriver(version, root, modules, digest, self.texts("rebellions.depth", "rebellions.mode"))

    def devices(self) -> tuple[Binding, ...]:
        words = (self.word(DEVICE) for _ in range(self.one(range(3))))
        return tuple(Binding(word, self.one(WORDS), self.one(WORDS), self.one(NUMBERS[:4])) for word in words)

    def owner(self) -> Owner:
        """A pod or a process, of any kind."""
        numbers = {name: self.one(NUMBERS) for name in ("pid", "start_ticks", "pid_namespace")}
        return Owner(self.one(WORDS), self.one(WORDS), boot_id=self.one(WORDS), **numbers)


def journal_of(choices: Choices) -> Journal:
    """A journal of the right types; each version of the form is among them."""
    return Journal(
        owner=choices.owner(),
        boot_id=choices.word(BOOT),
        labels=choices.texts(PLUGIN, EXPORTER),
        gates={key: choices.one((None, *WORDS)) for key in choices.words(GATE)},
        cordoned=choices.one((False, True)),
        driver=choices.driver(),
        services=choices.words(SERVICE, "reboot.target"),
        removed=choices.words("generic_npu", "dccp"),
        cordon_manager=choices.one(WORDS),
        node_uid=choices.one(WORDS),
        step=choices.one(WORDS),
        begin=choices.one(WORDS),
        cleared=choices.one(WORDS),
        devices=choices.devices(),
        record=choices.word(RUN, ""),
    )


def record_of(choices: Choices) -> HostRecord | None:
    """A record that a run of this boot may have left, with any content; None where there is none."""
    if not choices.one((False, True)):
        return None
    boot, services = choices.one((BOOT, "boot-0")), choices.words(SERVICE, "reboot.target")
    removed = choices.words("generic_npu", "dccp")
    return HostRecord(boot, RUN, services, removed, choices.driver(), choices.devices())


def _replacing(broken: str = "") -> World:
    """Services, modules, parameters, gates and a device: all that a journal can speak of."""
    world = replace_with_more_of_the_profile()
    world.policy = replace(world.policy, stop_host_services=True)
    world.host.services, world.host.broken = {SERVICE: True}, {broken} - {""}
    world.host.pci.put(function(driver="rebellions"))
    return world


def _current() -> World:
    world = _replacing()
    world.host.put_driver("2.0", world.digest, peer=False)
    return world


_failing = partial(_replacing, broken="2.0")


def _with_own_driver() -> World:
    """The host has a driver of its own, and a container would bring one."""
    world = _replacing()
    world.policy = replace(world.policy, loader=Loader.CONTAINER)
    world.host.host_driver = "/lib/modules/x/rebellions.ko"
    for path in (world.profile.paths.state_file, world.profile.paths.load_record):
        world.host.files.pop(path, None)
    return world


def _never_unloaded(loaded: str = "1.0", broken: str = "") -> World:
    world = World({}, Policy(loader=Loader.MANAGER, no_wait=True), profile=ASCEND, driver_root="/opt/new", gate="x")
    world.host.loaded |= dict.fromkeys(ASCEND.modules.roots if loaded else (), loaded)
    world.host.offers, world.host.broken = {"/opt/new": "2.0"}, {broken} - {""}
    return world


_not_loaded, _not_loading = partial(_never_unloaded, ""), partial(_never_unloaded, "", "2.0")


MakeWorld = Callable[[], World]
OF_ONE_DRIVER: tuple[MakeWorld, ...] = (_replacing, _current, _failing)
WORLDS: tuple[MakeWorld, ...] = (*OF_ONE_DRIVER, _with_own_driver, _never_unloaded)
BY_RECORD: Mapping[MakeWorld, tuple[MakeWorld, ...]] = {
    _with_own_driver: (_with_own_driver, *OF_ONE_DRIVER),
    _never_unloaded: (_never_unloaded, _not_loaded, _not_loading),
}
"""Worlds in which a record on the host, root's own word, may make the driver one that a run has loaded."""


@cache
def honest_effects(makes: tuple[MakeWorld, ...]) -> frozenset[str]:
    """What honest runs of the profile do, each killed at each of its effects and followed by others."""
    found = {"event", "patch"}
    for make in makes:
        at, was_killed = itertools.count(), True
        while was_killed:
            world = make()
            world.killer.kill_at(next(at), after=True)
            was_killed = world.run() is None
            for _ in range(RUNS):
                found |= _kinds(world)
                world.next_process()
                world.run()
            found |= _kinds(world)
    return frozenset(found)


def _kinds(world: World) -> set[str]:
    """The effects of the process that runs, or has run last: those of the one before are forgotten by then."""
    return {_kind(effect) for effect in world.killer.effects}


def _kind(effect: str) -> str:
    """The effect, without the name of the run and without what an administrator may have chosen for a device."""
    if RUN_RECORD in effect:
        return f"{effect.partition(' ')[0]} a record"
    return " ".join(effect.split(" ")[:2]) if effect.startswith(("override ", "virtual ")) else effect


def run_on_forged_state(data: bytes) -> None:
    """Whole runs on a node whose journal, and whose record on the host, were forged."""
    choices = Choices(data)
    make = choices.one(WORLDS)
    world = make()
    claims, record = journal_of(choices), record_of(choices)
    world.host.offers[EVIL_ROOT] = EVIL_VERSION
    world.cluster.edit({PLUGIN: choices.one(("true", PAUSED, f"gold_{PAUSED}")), "example.com/foo": PAUSED})
    before = world.state().labels
    world.cluster.edit(annotations={world.profile.keys.journal: encode(claims)})
    if record is not None:
        world.host.files[world.profile.paths.run_record(RUN)] = host_record.encode(record)
    done = set[str]()
    for _ in range(RUNS):
        assert world.run() is not None
        done |= _kinds(world)
        # A load is given the parameters of the profile alone, by one line for a module.
        given = world.host.given
        names = {f"{name}.{word.partition('=')[0]}" for name, line in given.items() for word in shlex.split(line)}
        assert names <= {"rebellions.mode", "rebellions.depth"}, given
        assert not any("\n" in line for line in given.values()), given
        assert record is not None or EVIL_VERSION not in world.host.loaded.values(), "a folder that the Node names"
        world.next_process()
    alone = (make,) if record is None else BY_RECORD.get(make, ())
    more = done - honest_effects(OF_ONE_DRIVER if make in OF_ONE_DRIVER else alone)
    if record is not None:
        # By root's own record, a device that is the vendor's is given what it had, whatever that was.
        more -= {f"override {DEVICE}", f"virtual {DEVICE}", f"remove {world.profile.paths.bindings}"}
    assert not more, f"no honest run does this: {more}"
    after = world.state().labels
    changed = {key for key in {**before, **after} if before.get(key) != after.get(key)}
    deploy = world.profile.deploy
    ours = {*deploy.on_unless_false, *world.profile.keys.names}
    strange = {key for key in changed - ours if not deploy.prefix or not key.startswith(deploy.prefix)}
    assert not strange, f"no label of the profile: {strange}"
    assert all(text.isprintable() for _, text, _ in world.cluster.posted)


REBOOTS = RebootPolicy("", KEYS, cordon=True, clear_workloads=True)


def _pending(choices: Choices, boot: str, uid: str) -> Pending | None:
    """A reboot under way that was not granted in this boot: what only root could write is left out."""
    if not choices.one((False, True)):
        return None
    is_of_now = choices.one((True, False))
    request = RebootRequest(boot if is_of_now else "boot-0", choices.one(("upgrade", "health")), choices.one(NUMBERS))
    started_s, who = 0 if is_of_now else choices.one(NUMBERS), choices.one((uid, *WORDS))
    return Pending(request, who, started_s, choices.one((False, True)), choices.one((False, True)))


def round_on_a_forged_grant(data: bytes) -> None:
    """A rebooter on a Node with forged annotations of a grant, and no approval: it does not reboot."""
    choices, fleet = Choices(data), Fleet(1, REBOOTS)
    (machine,) = fleet.machines
    if choices.one((True, False)):
        machine.request()
    current = machine.cluster.current
    assert current is not None
    boot = machine.host.boot_id
    notes: dict[str, Any] = {KEYS.approve_reboot: None}
    for key in (KEYS.pre_reboot_boot_id, KEYS.reboot_in_progress):
        notes[key] = choices.one((None, boot, "upgrade", "health", "true", *WORDS))
    machine.cluster.edit(annotations=notes)
    pending = _pending(choices, boot, current.uid)
    if choices.one((False, True)):
        machine.host.text = reboot_record.encode_reboot_record(Record(pending=pending, escalated=choices.one(WORDS)))
    for _ in range(RUNS):
        machine.round()
        assert machine.host.commands == [], "a reboot that was not approved"
    assert json.dumps(dict(machine.notes)).isascii()


SPREAD = tuple(bytes((at * step + at // 7) % 256 for at in range(90)) for step in (1, 3, 7, 11, 29, 73))
"""Inputs that choose differently at each place."""

EACH_WORLD = tuple(bytes([at]) for at in range(len(WORLDS)))
TARGETS = (
    Target("forged-journal", run_on_forged_state, (*EACH_WORLD, *SPREAD), Form.BYTES, allowed=(), runs=150),
    Target("forged-grant", round_on_a_forged_grant, (b"", b"\0\1\1", *SPREAD), Form.BYTES, allowed=(), runs=150),
)
