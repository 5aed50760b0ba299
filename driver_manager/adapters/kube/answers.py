"""What an API server's answer says: status, message, causes, when to come again. Pure; decides nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from driver_manager.adapters.kube.transport import Headers
from driver_manager.domain.errors import ApiRefused

UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, CONFLICT, EXPIRED, INVALID = 401, 403, 404, 409, 410, 422


class Answer(Exception):
    """An HTTP status that the caller asked for, to give it a meaning of its own."""

    def __init__(self, status: int, message: str, causes: tuple[str, ...], retry_after_s: float, what: str) -> None:
        super().__init__(message)
        self.what = what
        self.status = status
        self.message = message
        self.causes = causes
        self.retry_after_s = retry_after_s


class Unauthenticated(ApiRefused):
    """A 401: other credentials may be on disk by now."""


class ApiRejected(ApiRefused):
    """A request that the server takes for wrong, or an admission webhook does not want: it stays so."""


def refused(what: str, message: str) -> ApiRefused:
    """The error for a 403 on `what` (verb, resource and namespace).

    Admission (k8s.io/apiserver, pkg/admission/plugin) refuses what the account has the right for.
    """
    remedy = "Grant this account the verb (deploy/ has all the rules it needs), or use another account (KUBECONFIG)."
    if "denied request" in message or "denied the request" in message:
        remedy = "The account has the verb, but an admission policy or webhook of the cluster refuses this change."
    return ApiRefused(f"the API server refused to {what} ({FORBIDDEN}): {message}", remedy)


def unauthenticated(what: str, message: str) -> Unauthenticated:
    """The error for a 401 on `what`."""
    return Unauthenticated(
        f"the API server refused to {what} ({UNAUTHENTICATED}): {message}",
        "Renew the credentials.",
    )


def rejected(status: int, what: str, message: str) -> ApiRejected:
    """The error for any other status on `what` that a repetition does not change."""
    return ApiRejected(
        f"the API server rejected {what} ({status}): {message}",
        "Check for an admission webhook that refuses it, and that the Kubernetes version is supported; else report it.",
    )


def retry_after_s(headers: Headers, wall_s: float) -> float:
    """Seconds that Retry-After asks to wait, as seconds or as a date (RFC 9110, 10.2.3); 0 for none or nonsense.

    A date counts from the answer's own Date, so that a wrong clock on this node does not matter; `wall_s` is for an
    answer without one.
    """
    text = headers.get("Retry-After", "").strip()
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    then, now = _date(text), _date(headers.get("Date", ""))
    if then is None:
        return 0.0
    return max(0.0, (then - (now or datetime.fromtimestamp(wall_s, UTC))).total_seconds())


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def causes(data: bytes) -> tuple[str, ...]:
    """What the details of a Status object give as causes."""
    try:
        listed = json.loads(data)["details"]["causes"]
        return tuple(str(cause["message"]) for cause in listed)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()


def status_message(data: bytes) -> str:
    """The first line of what a Status object, or any other text, says."""
    try:
        message: Any = json.loads(data).get("message")
    except (ValueError, AttributeError, RecursionError):
        message = None
    text = message if isinstance(message, str) else data[:200].decode(errors="replace")
    # An admission policy's own words come after its name and that of its binding.
    return text.strip().splitlines()[0][:600] if text.strip() else "no message"
