"""Exit codes, and the exceptions that end a command, each with a remedy. Imports nothing of the package."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of the process. The numbers are a wire contract."""

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


class Place(StrEnum):
    """Where a command runs: started by a pod's container, or typed by a person in a pod on the node or elsewhere."""

    POD = "pod"
    NODE = "node"
    LAPTOP = "laptop"


_TRIED_AGAIN, _DO_AGAIN = "; the next run tries again.", ", then run the command again."
_RETRIED, _CONTINUED = "No action needed: the next run tries again.", "No action needed: the next run continues."
_REPEAT = "Run the command again."
_TRUST = "Correct the server's address and its CA, certificate-authority in the kubeconfig."
_OWN_CREDENTIALS = "Check that this pod's service account exists and that its token is mounted, or renew KUBECONFIG's."
_OWN_TRUST = "Check ca.crt of this pod's service account, or certificate-authority and server of KUBECONFIG."

PHRASES = {
    _TRIED_AGAIN: (_TRIED_AGAIN, _DO_AGAIN, _DO_AGAIN),
    ", then run again.": (_TRIED_AGAIN, _DO_AGAIN, _DO_AGAIN),
    "Run again.": (_RETRIED, _REPEAT, _REPEAT),
    "No action needed; it is retried.": (_RETRIED, _REPEAT, _REPEAT),
    "No action needed: the next run continues.": (_CONTINUED, _REPEAT, _REPEAT),
    "Renew the credentials.": (*(_OWN_CREDENTIALS,) * 2, "Log in again, or renew the token in the kubeconfig."),
    _TRUST: (_OWN_TRUST, _TRUST, _TRUST),
    "can be reached from this node": (*("can be reached from this node",) * 2, "can be reached from this machine"),
    "set this node's clock": (*("set this node's clock",) * 2, "set this machine's clock"),
}
"""Phrases of remedies, each as a command in a pod, on the node and on a laptop prints it."""


def at_place(remedy: str, place: Place) -> str:
    """`remedy` in the words of `place`."""
    for phrase, words in PHRASES.items():
        remedy = remedy.replace(phrase, words[list(Place).index(place)])
    return remedy


class ManagerError(Exception):
    """An expected failure: `what` happened, and the `remedy`, in one line each.

    `facts` are more fields of the JSON output; `blockers` are pods and processes, named as in `domain.host`.
    """

    exit_code = ExitCode.INTERNAL

    def __init_subclass__(cls, exit_code: ExitCode | None = None) -> None:
        """`exit_code`: that of the class and of its subclasses, if given."""
        cls.exit_code = exit_code or cls.exit_code

    def __init__(self, what: str, remedy: str, blockers: tuple[str, ...] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        self.facts: dict[str, Any] = {}
        self.blockers = blockers


class ConfigError(ManagerError, exit_code=ExitCode.USAGE):
    """An option, a profile, a file or the node's name cannot be used as given."""


class NodeMissing(ConfigError):
    """The Node object does not exist."""


class PodsRemain(ManagerError, exit_code=ExitCode.PODS_REMAIN):
    """Pods that must leave the node do not leave."""


class EvictionRefused(PodsRemain):
    """Pods may not be evicted: the options of the run do not allow it, or the API server refused until the deadline."""


class DriverBusy(ManagerError, exit_code=ExitCode.DRIVER_BUSY):
    """A process or a module uses the device or the driver's module."""


class ModuleFailed(ManagerError, exit_code=ExitCode.MODULE_FAILED):
    """The run could not unload, load or verify a module, or could not remove mounts or files of the host."""


class ModuleStuck(ModuleFailed):
    """The kernel is unloading a module and does not finish: until a reboot it can load no replacement."""


class PreflightFailed(ManagerError, exit_code=ExitCode.PREFLIGHT_FAILED):
    """The run cannot succeed, so it changed nothing."""


class ApiRefused(ManagerError, exit_code=ExitCode.API_REFUSED):
    """The API server answered 401 or 403, or rejected a request in a way that a repetition does not change."""


class ApiUnavailable(ManagerError, exit_code=ExitCode.API_UNAVAILABLE):
    """No usable answer for the whole retry budget. `asked_s` are the seconds in its Retry-After, 0 without one."""

    def __init__(self, what: str, remedy: str, asked_s: float = 0.0) -> None:
        super().__init__(what, remedy)
        self.asked_s = asked_s


class UpgradeUnended(ManagerError, exit_code=ExitCode.ROLLOUT_STUCK):
    """The run of a node did not end in the time that a person gave it."""


class Conflict(ManagerError, exit_code=ExitCode.API_UNAVAILABLE):
    """Another client changed the object after the program read it: observe and plan again."""


class WatchExpired(ManagerError, exit_code=ExitCode.API_UNAVAILABLE):
    """The watch cannot continue from its resourceVersion (410): list again."""


class WatchBroken(ManagerError, exit_code=ExitCode.API_UNAVAILABLE):
    """The watch broke off: watch again from the last resourceVersion."""


class ModuleBusy(DriverBusy):
    """The kernel refused to unload a module that is in use."""


class RebootRequired(ManagerError, exit_code=ExitCode.REBOOT_REQUIRED):
    """Only a reboot can load the wanted driver."""


class StandingDown(ManagerError, exit_code=ExitCode.STANDING_DOWN):
    """This program must not change the node, or got a signal to terminate."""


class Terminated(StandingDown):
    """SIGTERM or SIGINT arrived during a wait."""


class OwnedElsewhere(ManagerError, exit_code=ExitCode.OWNED_ELSEWHERE):
    """The journal names another run, whose owner is running or may be running."""
