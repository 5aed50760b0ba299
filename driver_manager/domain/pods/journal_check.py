"""Checks of a Node's journal: which of its fields a run may act on.

More accounts than ours can write the annotation. Each field is compared with the profile, which defines what an honest
run can have written. A field that fails is ignored and named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.domain import journal as journals
from driver_manager.domain.host import Host
from driver_manager.domain.host_record import HostRecord, lost_driver
from driver_manager.domain.journal import MAX_LINE_CHARS, Journal, OldDriver, Owner, Refused, Written, is_line, is_owner
from driver_manager.domain.node import PROGRAM, ROLLOUT, Node, Pod
from driver_manager.domain.pci import merged_bindings
from driver_manager.domain.pods import labels as label_rules
from driver_manager.domain.profile import Profile, has_root, is_own, kept
from driver_manager.domain.selectors import is_label_key, is_label_value
from driver_manager.domain.text import is_digest, several
from driver_manager.domain.wire import in_brief

_MODULE = re.compile(r"[A-Za-z0-9_]{1,55}")
"""A name as /sys/module has it: MODULE_NAME_LEN is 56 with its end (include/linux/module.h)."""

T = TypeVar("T")


class Checked(Struct, frozen=True):
    """A journal without what failed a check, and what did."""

    journal: Journal
    refused: tuple[Refused, ...] = ()


class _Check:
    def __init__(self, profile: Profile, refused: Iterable[Refused]) -> None:
        self.profile = profile
        self.refused = list(refused)

    def those(self, field: str, values: Iterable[T], is_good: Callable[[T], bool], why: str) -> tuple[T, ...]:
        """Those of `values` that are good. The others are refused as one, for `why`."""
        values = tuple(values)
        bad = [value for value in values if not is_good(value)]
        if bad:
            self.refused.append(Refused(field, f"{several(map(_brief, bad))}: {why}"))
        return tuple(value for value in values if is_good(value))

    def one(self, field: str, value: T, otherwise: T, is_good: Callable[[T], bool], why: str) -> T:
        """`value` where it is good, else `otherwise`."""
        return next(iter(self.those(field, (value,), is_good, why)), otherwise)

    def word(self, field: str, text: str) -> str:
        """`text` where it can be printed as one word or sentence, else ""."""
        return self.one(field, text, "", is_line, f"not one line of at most {MAX_LINE_CHARS} characters")


def journal_on(node: Node, profile: Profile) -> Checked | None:
    """The journal on `node`, None where there is none. Raises JournalUnreadable."""
    text = node.annotations.get(profile.keys.journal)
    return checked(journals.decode(text), node.labels, profile) if text is not None else None


def checked(written: Written, labels: Mapping[str, str], profile: Profile) -> Checked:
    """The part of `written` that a node with `labels` may have.

    If a label of the journal is refused, each paused label that it lacks gets the original decoded from its value.
    """
    claims, check = written.claims, _Check(profile, written.refused)
    journal = replace(
        _with_commands(claims, check),
        owner=claims.owner
        if any(one.field == "owner" for one in written.refused)
        else check.one("owner", claims.owner, Owner(), is_owner, "neither a pod nor a process"),
        boot_id=check.word("bootId", claims.boot_id),
        labels=_labels(claims.labels, labels, check),
        gates=_gates(claims.gates, check),
        cordon_manager=check.word("cordonManager", claims.cordon_manager),
        node_uid=check.word("nodeUid", claims.node_uid),
        step=check.word("step", claims.step),
        begin=check.word("begin", claims.begin),
        cleared=check.word("cleared", claims.cleared),
        window=check.one(
            "window",
            claims.window,
            None,
            lambda window: window is None or window.is_of_this_era,
            "not times of this era",
        ),
        record=check.word("hostRecord", claims.record),
    )
    return Checked(journal, tuple(check.refused))


def with_record(found: Checked, record: HostRecord | None, boot_id: str, profile: Profile) -> Checked:
    """`found` of a node whose host was read, in the boot `boot_id`: with what its `record` has to undo.

    Without one, what the journal itself asks for, as older versions wrote it, is left out and named, as is a record
    that this boot should have. The old driver, which decides what is unloaded, comes from a record alone.
    """
    journal = found.journal
    if record is not None:
        whole = replace(
            journal, services=record.services, removed=record.removed, driver=record.driver, devices=record.devices
        )
        check = _Check(profile, dict.fromkeys((*found.refused, *record.refused)))
        return Checked(_with_commands(whole, check), tuple(check.refused))
    left = without_commands(found)
    lost = journal.record and journal.boot_id == boot_id
    missing = (Refused("hostRecord", "this host has no such record; only labels and cordon are restored"),)
    bare = replace(left.journal, driver=None, record="")
    return Checked(bare, (*left.refused, *(missing if lost else ())))


def with_left(found: Checked, records: Iterable[HostRecord], host: Host, profile: Profile) -> Checked:
    """`found` with what `records` of ended runs of this boot have to undo too, which its journal does not name."""
    journal, records = found.journal, tuple(records)
    lost = lost_driver(records, is_loaded=has_root(host.modules, profile.modules), digest=host.digest)
    whole = replace(
        journal,
        boot_id=host.boot_id,
        services=_united(journal.services, *(one.services for one in records)),
        removed=_united(journal.removed, *(one.removed for one in records)),
        driver=journal.driver or lost,
        devices=reduce(merged_bindings, (one.devices for one in records), journal.devices),
    )
    check = _Check(profile, dict.fromkeys((*found.refused, *(field for one in records for field in one.refused))))
    return Checked(_with_commands(whole, check), tuple(check.refused))


def _united(*names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({name for some in names for name in some}))


def without_commands(found: Checked) -> Checked:
    """`found` without what has to be undone on a host; what an older version wrote of that on the Node is named."""
    journal = found.journal
    driver, why = journal.driver, "it is on the Node and not in a record on the host"
    texts = {
        "services": several(f"{name} is not started" for name in journal.services),
        "removed": several(f"{name} is not loaded" for name in journal.removed),
        "devices": several(f"{in_brief(one.address)} is not restored" for one in journal.devices),
    }
    if driver is not None and not journal.record:
        what = several(driver.modules) or f"version {driver.version or '(none)'}"
        texts["driver"] = f"{what} of {driver.root or 'an unknown root'} is not loaded again"
    refused = tuple(Refused(field, f"{why}: {text}") for field, text in texts.items() if text)
    bare = replace(
        journal, services=(), removed=(), devices=(), driver=OldDriver(driver.version) if driver is not None else None
    )
    return Checked(bare, (*found.refused, *refused))


def _with_commands(claims: Journal, check: _Check) -> Journal:
    profile = check.profile
    return replace(
        claims,
        driver=_driver(claims.driver, check),
        services=check.those(
            "services", claims.services, lambda name: name in profile.host_services, "not a host service of the profile"
        ),
        removed=check.those(
            "removed",
            claims.removed,
            lambda name: name in profile.modules.conflicting_removable,
            "not a module that the profile allows to remove",
        ),
    )


def runs_manager(pod: Pod, own: Pod | None, profile: Profile) -> bool:
    """True if the manager runs in `pod`: a pod of our own DaemonSet, a task of a rollout, or our image or command.

    By hand, without a pod of our own (`own` None), the driver's deploy label selects our DaemonSet.
    """
    deploy, modes = profile.deploy, profile.passthrough
    components = (deploy.driver_component, *((modes.component,) if modes is not None else ()))
    ours = {deploy.prefix + name for name in components if deploy.prefix}
    if pod.owner_kind == "DaemonSet":
        is_same = own is not None and bool(own.controller) and pod.controller == own.controller
        if is_same or ours & pod.selector_keys:
            return True
    if pod.owner_kind == ROLLOUT or PROGRAM in pod.programs:
        return True
    return own is not None and bool(set(own.images) & set(pod.images))


def _labels(claims: Mapping[str, str], now: Mapping[str, str], check: _Check) -> dict[str, str]:
    profile, paused_value = check.profile, check.profile.deploy.paused_value

    def is_good(pair: tuple[str, str]) -> bool:
        key, value = pair
        there = now.get(key)
        fits = not label_rules.is_paused(there, paused_value) or bool(
            label_rules.restored({key: there or ""}, {key: value}, paused_value)
        )
        is_original = label_rules.is_pausable(value) and not label_rules.is_paused(value, paused_value)
        return _may_be_paused(key, profile) and is_label_value(value) and is_original and fits

    good = dict(
        check.those(
            "labels", claims.items(), is_good, "not a deploy label of the profile with a value that a run pauses"
        )
    )
    if len(good) == len(claims):
        return good
    paused = (key for key in now if _may_be_paused(key, profile) and label_rules.is_paused(now[key], paused_value))
    return {**{key: label_rules.decoded(now[key], paused_value) for key in paused}, **good}


def _may_be_paused(key: str, profile: Profile) -> bool:
    """True if a run pauses the label: the driver's own too, for virtual machines."""
    deploy = profile.deploy
    is_switch = bool(deploy.prefix) and (key.startswith(deploy.prefix) or key in deploy.last_keys)
    return is_switch and key not in {*profile.keys.names, *deploy.on_unless_false} and is_label_key(key)


def _gates(claims: Mapping[str, str | None], check: _Check) -> dict[str, str | None]:
    known = check.profile.deploy.on_unless_false
    good = check.those(
        "gates",
        claims.items(),
        lambda pair: pair[0] in known and (pair[1] is None or (pair[1] != label_rules.OFF and is_label_value(pair[1]))),
        "not a label of the profile that is on unless false",
    )
    return dict(good)


def _driver(claims: OldDriver | None, check: _Check) -> OldDriver | None:
    if claims is None:
        return None
    modules = check.profile.modules
    kept_values = kept(claims.parameters, modules.keep_parameters)
    return OldDriver(
        version=check.word("driver.version", claims.version),
        root=check.one("driver.root", claims.root, "", _is_root, "not a folder of the host"),
        modules=check.those(
            "driver.modules",
            claims.modules,
            lambda name: bool(_MODULE.fullmatch(name)) and is_own(name, modules),
            "not a module of the driver",
        ),
        digest=check.one("driver.digest", claims.digest, "", lambda text: not text or is_digest(text), "not a digest"),
        parameters=dict(
            check.those(
                "driver.parameters",
                claims.parameters.items(),
                lambda pair: pair[0] in kept_values and is_own(pair[0].partition(".")[0], modules),
                "not a parameter that the profile keeps, with a value that modprobe.d can hold",
            )
        ),
    )


def _is_root(text: str) -> bool:
    return not text or (text.startswith("/") and ".." not in text.split("/") and is_line(text))


def _brief(value: Any) -> str:
    if isinstance(value, tuple):
        return "=".join(map(in_brief, value))
    return in_brief(value if isinstance(value, str) else str(value))
