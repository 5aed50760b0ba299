"""What a run that failed after it had disturbed somebody notes on the host, for the runs that follow in the same boot.

Owns the JSON form of the note. Whether a later run waits because of it belongs to
`driver_manager.domain.swap.retry_wait`. The note lies under /run, so a boot ends it. Pure.
"""

from __future__ import annotations

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.escaping import writable
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.wire import Form

MAX_ATTEMPTS = 10_000
MAX_WHAT_CHARS = 300


class PastFailure(Frozen):
    """The failure of a run, and how many in a row came to the same end.

    `wish` tells what was wanted, and all that decides how it is done, from anything else. `pod_uid` is the pod that the
    run was in, "" by hand. `blockers` are what stood in its way, as `pod_blocker` and `process_blocker` name them; none
    where that is not known. `failed_s` is when, in seconds of the boot.
    """

    boot_id: str
    wish: str
    exit_code: int
    what: str
    failed_s: float
    attempts: int = 1
    pod_uid: str = ""
    blockers: tuple[str, ...] = ()


class FailureUnreadable(ConfigError):
    """The file is no note that this version can act on."""


FORM = Form("the note of the last failure", FailureUnreadable, "No action needed: the next failure replaces it.")


def pod_blocker(uid: str) -> str:
    """The name of a pod that stands in the way."""
    return f"pod {uid}"


def process_blocker(pid: int, name: str) -> str:
    """The name of a process that stands in the way: numbers of processes come again."""
    return f"process {pid} {name}"


def is_process(blocker: str) -> bool:
    """Whether it names a process."""
    return blocker.startswith("process ")


def encode(failure: PastFailure) -> str:
    """The note: one line of JSON."""
    body = {
        "bootId": failure.boot_id,
        "wish": failure.wish,
        "exitCode": failure.exit_code,
        "what": failure.what[:MAX_WHAT_CHARS],
        "failedAt": failure.failed_s,
        "attempts": min(failure.attempts, MAX_ATTEMPTS),
        "podUid": failure.pod_uid,
        "blockers": list(failure.blockers),
    }
    return FORM.write(body) + "\n"


def decode(text: str) -> PastFailure:
    """What `encode` wrote. Raises FailureUnreadable for garbage and for newer versions."""
    body = FORM.read(text)
    return PastFailure(
        boot_id=body.text("bootId"),
        wish=body.text("wish"),
        exit_code=body.whole("exitCode", least=0, most=255),
        what=writable(body.text("what"))[:MAX_WHAT_CHARS],
        failed_s=body.seconds("failedAt"),
        attempts=body.whole("attempts", least=1, most=MAX_ATTEMPTS),
        pod_uid=body.text("podUid"),
        blockers=body.texts("blockers"),
    )


def noted(text: str, boot_id: str) -> PastFailure | None:
    """The note in `text`, where it is one of this boot: anything else is none."""
    try:
        failure = decode(text) if text else None
    except FailureUnreadable:
        return None
    return failure if failure is not None and failure.boot_id == boot_id else None
