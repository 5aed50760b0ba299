"""Exit codes, and the exceptions that end a command, each with a remedy.

Exit codes are a wire contract. Imports nothing of the package.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """Process exit codes; part of the wire contract."""

    DONE = 0
    INTERNAL = 1
    USAGE = 2
    PODS_REMAIN = 3
    DRIVER_BUSY = 4
    MODULE_FAILED = 5
    PREFLIGHT_FAILED = 6
    API_REFUSED = 7
    API_UNAVAILABLE = 8
    REBOOT_REQUIRED = 9
    STANDING_DOWN = 10
    OWNED_ELSEWHERE = 11
    ROLLOUT_STUCK = 12


EXIT_MEANINGS: dict[ExitCode, str] = {
    ExitCode.DONE: "done, or nothing to do",
    ExitCode.INTERNAL: "internal error (a bug: the only code with a traceback)",
    ExitCode.USAGE: "usage or configuration",
    ExitCode.PODS_REMAIN: "pods would not leave",
    ExitCode.DRIVER_BUSY: "driver busy",
    ExitCode.MODULE_FAILED: "module operation failed",
    ExitCode.PREFLIGHT_FAILED: "preflight failed; nothing was changed",
    ExitCode.API_REFUSED: "API refused (401/403, or rejected)",
    ExitCode.API_UNAVAILABLE: "API unavailable",
    ExitCode.REBOOT_REQUIRED: "reboot required",
    ExitCode.STANDING_DOWN: "standing down (host-installed driver, or asked to terminate)",
    ExitCode.OWNED_ELSEWHERE: "another run owns the node",
    ExitCode.ROLLOUT_STUCK: "rollout halted or stalled",
}


class ManagerError(Exception):
    """An expected failure: one line saying what, one line saying what to do. `facts` go along in JSON.

    `blockers` are the pods and processes that it is about, named as in `driver_manager.domain.host`.
    """

    exit_code = ExitCode.INTERNAL

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        self.facts: dict[str, Any] = {}
        self.blockers: tuple[str, ...] = ()


class ConfigError(ManagerError):
    """An option, a profile, a file or the node's name cannot be used as given."""

    exit_code = ExitCode.USAGE


class NodeMissing(ConfigError):
    """The Node object does not exist (any more)."""


class PodsRemain(ManagerError):
    """Pods that have to leave do not."""

    exit_code = ExitCode.PODS_REMAIN


class EvictionRefused(PodsRemain):
    """Pods may not be evicted: by our own rules, for want of consent, or by the API server until the deadline."""


class DriverBusy(ManagerError):
    """Something holds the device or the module."""

    exit_code = ExitCode.DRIVER_BUSY


class ModuleFailed(ManagerError):
    """A module could not be unloaded, loaded or verified, or the host's mounts or files not be cleaned."""

    exit_code = ExitCode.MODULE_FAILED


class ModuleStuck(ModuleFailed):
    """The kernel is unloading a module and does not finish: until a reboot nothing can take its place."""


class PreflightFailed(ManagerError):
    """The run would not succeed; nothing was changed."""

    exit_code = ExitCode.PREFLIGHT_FAILED


class ApiRefused(ManagerError):
    """The API server answered 401 or 403, or rejects a request so that a repetition would not help."""

    exit_code = ExitCode.API_REFUSED


class ApiUnavailable(ManagerError):
    """The API server could not be reached, or kept failing, for the whole retry budget.

    `asked_s` is for how many seconds it asked to be left alone, 0 where it did not.
    """

    exit_code = ExitCode.API_UNAVAILABLE

    def __init__(self, what: str, remedy: str, asked_s: float = 0.0) -> None:
        super().__init__(what, remedy)
        self.asked_s = asked_s


class Conflict(ManagerError):
    """The object changed since it was read: observe again, plan again."""

    exit_code = ExitCode.API_UNAVAILABLE


class WatchExpired(ManagerError):
    """The watch cannot go on from its resourceVersion (410): list again."""

    exit_code = ExitCode.API_UNAVAILABLE


class WatchBroken(ManagerError):
    """The watch ended in the middle: watch again from the last resourceVersion seen."""

    exit_code = ExitCode.API_UNAVAILABLE


class ModuleBusy(DriverBusy):
    """The kernel refused to unload a module because something uses it."""


class RebootRequired(ManagerError):
    """Only a reboot can bring the wanted driver."""

    exit_code = ExitCode.REBOOT_REQUIRED


class StandingDown(ManagerError):
    """The node is not ours to change, or we were told to terminate."""

    exit_code = ExitCode.STANDING_DOWN


class Terminated(StandingDown):
    """SIGTERM or SIGINT arrived while we were waiting."""


class OwnedElsewhere(ManagerError):
    """The journal names another run whose owner still lives."""

    exit_code = ExitCode.OWNED_ELSEWHERE
