"""The journal on the Node: what the run that took it must restore. Every version ever written stays readable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.domain import outage
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.outage import Outage
from driver_manager.domain.pci import Binding
from driver_manager.domain.wire import Fields, Form, Part, body_of

MAX_LINE_CHARS = 256
MAX_PID = 2**22
"""PID_MAX_LIMIT of the kernel (include/linux/threads.h)."""

MAX_COUNT = 2**63

_POD = re.compile(r"[a-z0-9][-a-z0-9]{0,62}/[a-z0-9][-a-z0-9.]{0,252}")
_UID = re.compile(r"[A-Za-z0-9][-A-Za-z0-9]{0,127}")


class Owner(Struct, frozen=True):
    """The process of a run: pid and start time in a pid namespace of one boot, with the pod unless it runs by hand."""

    pod: str = ""
    pod_uid: str = ""
    pid: int = 0
    start_ticks: int = 0
    pid_namespace: int = 0
    boot_id: str = ""

    @property
    def process(self) -> str:
        return f"{self.boot_id}:{self.pid_namespace}:{self.pid}:{self.start_ticks}"

    def __str__(self) -> str:
        if self.pod_uid:
            return f"pod {self.pod}"
        return f"process {self.pid} run by hand" if self.pid else "an unknown owner"


class OldDriver(Struct, frozen=True):
    """The driver that was loaded when a run took the node. `root` is the driver root of its modules, "" if unknown.

    `parameters` are values of its modules by `module.parameter`, which the next driver gets too.
    """

    version: str = ""
    root: str = ""
    modules: tuple[str, ...] = ()
    digest: Annotated[str, Part(is_omitted=True)] = ""
    parameters: Annotated[Mapping[str, str], Part(is_omitted=True)] = field(default_factory=dict)


class Journal(Struct, frozen=True):
    """The owner and the original state of one taken node.

    `labels` and `gates` are the original values of paused labels; a gate counts as on unless it is `false`, and is None
    if it was absent. `cordoned`: the run set the cordon. `driver` is None if none was loaded.

    `services` of the host may be stopped, and are started again; modules in conflict may be `removed`, and are loaded
    again if the load of the driver fails. `cordon_manager` is the field manager of our cordon on the Node with the uid
    `node_uid`, "" if unknown. `devices` are bindings from before a run gave functions to virtual machines.

    `cleared` is the revision of the next driver pod, set once only the present driver pod uses the device. `window` is
    None if no pod was asked to leave.

    `record` names the host record, which has what the run must undo on the host. Only an older version wrote a journal
    without one (""): its annotation itself has `services`, `removed`, `devices` and all of `driver`, not only the
    version.

    For people only: `begin` is when this run took the node, or the one that it continues, in RFC 3339; `step` wrote
    this.
    """

    owner: Annotated[Owner, Part(None)]
    boot_id: str
    labels: Mapping[str, str] = field(default_factory=dict)
    gates: Annotated[Mapping[str, str | None], Part(is_omitted=True)] = field(default_factory=dict)
    cordoned: bool = False
    driver: Annotated[OldDriver | None, Part(None)] = None
    services: Annotated[tuple[str, ...], Part(is_omitted=True)] = ()
    removed: Annotated[tuple[str, ...], Part(is_omitted=True)] = ()
    cordon_manager: Annotated[str, Part(is_omitted=True)] = ""
    node_uid: Annotated[str, Part(is_omitted=True)] = ""
    step: Annotated[str, Part(is_omitted=True)] = ""
    begin: Annotated[str, Part(is_omitted=True)] = ""
    cleared: Annotated[str, Part(is_omitted=True)] = ""
    window: Annotated[Outage | None, Part(None)] = None
    devices: Annotated[tuple[Binding, ...], Part(is_omitted=True)] = ()
    record: Annotated[str, Part("hostRecord", is_omitted=True)] = ""

    @property
    def paused(self) -> frozenset[str]:
        """Keys of all labels that a run changed to pause operands."""
        return frozenset((*self.labels, *self.gates))


class Refused(Struct, frozen=True):
    """A field of a journal that every run ignores, and why."""

    field: str
    why: str

    def __str__(self) -> str:
        return f"the journal's field {self.field} is ignored: {self.why}"


KMM_REMOVED = Refused(
    "kmm",
    "the hand-off to KMM was removed, and KMM may still change the driver; check the label "
    "kmm.node.kubernetes.io/version-module.<namespace>.<name> of the node by hand",
)
"""An older version requested drivers from Kernel Module Management (KMM)."""


class Written(Struct, frozen=True):
    """A journal as the annotation has it, unchecked (see `journal_check`), without the unreadable fields `refused`."""

    claims: Journal
    refused: tuple[Refused, ...] = ()


class JournalUnreadable(ConfigError):
    """This version cannot read the annotation as a journal."""


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
    owner = journal.owner
    process = {
        "pid": owner.pid,
        "startTicks": owner.start_ticks,
        "pidNamespace": owner.pid_namespace,
        "bootId": owner.boot_id,
    }
    kept = replace(journal, services=(), removed=(), devices=()) if journal.record else journal
    body = body_of(kept)
    body["owner"] = {
        **({"pod": owner.pod, "uid": owner.pod_uid} if owner.pod_uid else {}),
        **(process if owner.pid else {}),
    }
    if not journal.record:
        # The lowest version that has all fields: a program of a lower version would lose the gates or the host record.
        body[FORM.key] = 2 if journal.gates else 1
    if journal.driver is not None:
        body["driver"] = {"version": journal.driver.version} if journal.record else body_of(journal.driver)
    if journal.window is not None:
        body["window"] = journal.window.to_json()
    return FORM.write(body)


def decode(text: str) -> Written:
    """The journal in `text`; an unreadable owner counts as ended. Raises JournalUnreadable."""
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
        old = body.fields("driver")
        driver = OldDriver(old.text("version")) if record else old.record(OldDriver)
    gates = _gates(body.fields("gates")) if "gates" in body else {}
    there = {} if not record else dict[str, Any](services=(), removed=(), devices=())
    return body.record(Journal, owner=owner, driver=driver, gates=gates, window=outage.kept_in(body), **there)


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


def cleared_by(text: str) -> str:
    """The uid of the pod whose run cleared the node for a driver pod, by the journal in `text`; "" if none."""
    try:
        claims = decode(text).claims
    except JournalUnreadable:
        return ""
    return claims.owner.pod_uid if is_owner(claims.owner) and is_line(claims.cleared) and claims.cleared else ""


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
    """True if `text` is printable and has at most MAX_LINE_CHARS characters."""
    return text.isprintable() and len(text) <= MAX_LINE_CHARS
