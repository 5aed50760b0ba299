"""The journal on the Node: what the run that took the node must restore. Facts, no commands.

This module has the JSON form of the annotation. Every version ever written stays readable. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from driver_manager.domain import outage
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.outage import Outage
from driver_manager.domain.pci import Binding, bindings_in, bindings_to_json
from driver_manager.domain.wire import Fields, Form

MAX_LINE_CHARS = 256
MAX_PID = 2**22
"""PID_MAX_LIMIT (include/linux/threads.h)."""

MAX_COUNT = 2**63

_POD = re.compile(r"[a-z0-9][-a-z0-9]{0,62}/[a-z0-9][-a-z0-9.]{0,252}")
_UID = re.compile(r"[A-Za-z0-9][-A-Za-z0-9]{0,127}")


class Owner(Struct, frozen=True):
    """Who runs: a process (pid and start time within a pid namespace of one boot), by hand or in a pod (by uid)."""

    pod: str = ""
    pod_uid: str = ""
    pid: int = 0
    start_ticks: int = 0
    pid_namespace: int = 0
    boot_id: str = ""

    @property
    def process(self) -> str:
        """A word for the process that no other one of this host has."""
        return f"{self.boot_id}:{self.pid_namespace}:{self.pid}:{self.start_ticks}"

    def __str__(self) -> str:
        if self.pod_uid:
            return f"pod {self.pod}"
        return f"process {self.pid} run by hand" if self.pid else "an unknown owner"


class OldDriver(Struct, frozen=True):
    """The driver that was loaded when the node was taken; `root` is where its modules came from, "" if unknown.

    `parameters` are those of its modules, by `module.parameter`, that the next driver is to have as well.
    """

    version: str = ""
    root: str = ""
    modules: tuple[str, ...] = ()
    digest: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


class Journal(Struct, frozen=True):
    """Originals and ownership of one taken node.

    `labels` are paused ones; `gates` are those that are on unless they say `false`, None where they were absent.
    `driver` is None where none was loaded at the time.

    `services` are the host's services that this node may have lost to us, to be started again, and `removed` modules
    that conflict with the driver, to be loaded again where no driver comes of it. `cordon_manager` is the
    field manager that our cordon is on record for, on the Node of `node_uid`; "" where that is not known.

    `devices` are the vendor's functions as they were before a run gave them to virtual machines.

    `cleared` is the revision of the driver pod that is to come, once nobody but the present one uses the device.
    `window` is what the run that wrote this had measured by then, None where it had told nobody to go.

    `record` names the record on the host that has what is to be undone there; "" only as an older version wrote it, as
    are `services`, `removed`, `devices` and more than the version of `driver` in the annotation.

    For the reader alone: `begin` is when the node was taken, as `timestamps` writes it, by this run or the earlier one
    that it goes on from; `step` names the step that wrote this.
    """

    owner: Owner
    boot_id: str
    labels: Mapping[str, str] = field(default_factory=dict)
    gates: Mapping[str, str | None] = field(default_factory=dict)
    cordoned: bool = False
    driver: OldDriver | None = None
    services: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    cordon_manager: str = ""
    node_uid: str = ""
    step: str = ""
    begin: str = ""
    cleared: str = ""
    window: Outage | None = None
    devices: tuple[Binding, ...] = ()
    record: str = ""

    @property
    def paused(self) -> frozenset[str]:
        """Keys of all labels that were changed to pause operands."""
        return frozenset((*self.labels, *self.gates))


class Refused(Struct, frozen=True):
    """A field of a journal that no run acts on, and why."""

    field: str
    why: str

    def __str__(self) -> str:
        return f"the journal's field {self.field} is ignored: {self.why}"


KMM_REMOVED = Refused(
    "kmm",
    "the hand-off to KMM was removed, and KMM may still change the driver; check the label "
    "kmm.node.kubernetes.io/version-module.<namespace>.<name> of the node by hand",
)
"""An older version asked Kernel Module Management (KMM) for a driver."""


class Written(Struct, frozen=True):
    """A journal as an annotation has it, not checked: `journal_check` makes one of it that a run may act on.

    `refused` are fields that could not be read and that the rest is read without.
    """

    claims: Journal
    refused: tuple[Refused, ...] = ()


class JournalUnreadable(ConfigError):
    """The annotation is not a journal that this version can act on."""


FORM = Form(
    "the node's journal",
    JournalUnreadable,
    "Look at it with `driver-manager status`; `driver-manager restore --ignore-journal` restores the labels from "
    "their paused values. Nothing was changed.",
    key="v",
    version=3,
    is_compact=True,
)


def encode(journal: Journal) -> str:
    """The annotation's value: compact JSON with sorted keys."""
    owner = journal.owner
    process = {
        "pid": owner.pid,
        "startTicks": owner.start_ticks,
        "pidNamespace": owner.pid_namespace,
        "bootId": owner.boot_id,
    }
    body: dict[str, Any] = {
        "bootId": journal.boot_id,
        "owner": {
            **({"pod": owner.pod, "uid": owner.pod_uid} if owner.pod_uid else {}),
            **(process if owner.pid else {}),
        },
        "labels": dict(journal.labels),
        "cordoned": journal.cordoned,
    }
    if journal.gates:
        body["gates"] = dict(journal.gates)
    if not journal.record:
        # A version that knows of no record on the host would lose it, and one that knows of no gates would lose those.
        body[FORM.key] = 2 if journal.gates else 1
    if journal.driver is not None:
        body["driver"] = {"version": journal.driver.version} if journal.record else driver_to_json(journal.driver)
    if not journal.record:
        body |= {"services": list(journal.services)} if journal.services else {}
        body |= {"removed": list(journal.removed)} if journal.removed else {}
        body |= {"devices": bindings_to_json(journal.devices)} if journal.devices else {}
    texts = {
        "cordonManager": journal.cordon_manager,
        "nodeUid": journal.node_uid,
        "step": journal.step,
        "begin": journal.begin,
        "cleared": journal.cleared,
        "hostRecord": journal.record,
    }
    body |= {key: text for key, text in texts.items() if text}
    if journal.window is not None:
        body["window"] = journal.window.to_json()
    return FORM.write(body)


def decode(text: str) -> Written:
    """The journal in `text`. Raises JournalUnreadable for garbage and for versions newer than this one.

    An owner that is none counts as one that has ended.
    """
    body = FORM.read(text)
    owner, refused = Owner(), (KMM_REMOVED,) if "kmm" in body else ()
    try:
        owner = _owner(body.fields("owner"))
    except JournalUnreadable as error:
        refused = (*refused, Refused("owner", error.what))
    return Written(_claims(body, owner), refused)


def _claims(body: Fields, owner: Owner) -> Journal:
    record = body.text("hostRecord", "")
    driver = None
    if "driver" in body and not body.is_null("driver"):
        said = body.fields("driver")
        driver = OldDriver(said.text("version")) if record else driver_in(said)
    return Journal(
        owner=owner,
        boot_id=body.text("bootId"),
        labels=body.texts_by_name("labels"),
        gates=_gates(body.fields("gates")) if "gates" in body else {},
        cordoned=body.flag("cordoned"),
        driver=driver,
        services=() if record else body.texts("services", ()),
        removed=() if record else body.texts("removed", ()),
        cordon_manager=body.text("cordonManager", ""),
        node_uid=body.text("nodeUid", ""),
        step=body.text("step", ""),
        begin=body.text("begin", ""),
        cleared=body.text("cleared", ""),
        window=outage.kept_in(body),
        devices=() if record else bindings_in(body),
        record=record,
    )


def _owner(body: Fields) -> Owner:
    in_pod = "uid" in body
    pod, pod_uid = (body.text("pod"), body.text("uid")) if in_pod else ("", "")
    if in_pod and "pid" not in body:
        return Owner(pod=pod, pod_uid=pod_uid)
    return Owner(
        pod=pod,
        pod_uid=pod_uid,
        pid=body.whole("pid"),
        start_ticks=body.whole("startTicks"),
        pid_namespace=body.whole("pidNamespace"),
        boot_id=body.text("bootId"),
    )


def _gates(body: Fields) -> dict[str, str | None]:
    return {key: None if body.is_null(key) else body.text(key) for key in body.body}


def driver_to_json(driver: OldDriver) -> dict[str, Any]:
    """The whole driver, as an older journal and the host's record have it."""
    return {
        "version": driver.version,
        "root": driver.root,
        "modules": list(driver.modules),
        **({"digest": driver.digest} if driver.digest else {}),
        **({"parameters": dict(driver.parameters)} if driver.parameters else {}),
    }


def driver_in(body: Fields) -> OldDriver:
    """What `driver_to_json` gave. Raises as `body`."""
    return OldDriver(
        version=body.text("version"),
        root=body.text("root"),
        modules=body.texts("modules"),
        digest=body.text("digest", ""),
        parameters=body.texts_by_name("parameters") if "parameters" in body else {},
    )


def cleared_by(text: str) -> str:
    """The uid of the pod whose run has cleared the node for a driver pod, as the journal in `text` tells; else ""."""
    try:
        said = decode(text).claims
    except JournalUnreadable:
        return ""
    return said.owner.pod_uid if is_owner(said.owner) and is_line(said.cleared) and said.cleared else ""


def is_owner(owner: Owner) -> bool:
    """True if `owner` can be a pod, a process, or a process in a pod."""
    is_process = (
        0 < owner.pid <= MAX_PID
        and 0 <= owner.start_ticks < MAX_COUNT
        and 0 <= owner.pid_namespace < MAX_COUNT
        and is_line(owner.boot_id)
    )
    if not owner.pod_uid:
        return is_process
    is_pod = bool(_POD.fullmatch(owner.pod) and _UID.fullmatch(owner.pod_uid))
    return is_pod and (is_process or not owner.pid)


def is_line(text: str) -> bool:
    """True if `text` can be printed in one line."""
    return text.isprintable() and len(text) <= MAX_LINE_CHARS
