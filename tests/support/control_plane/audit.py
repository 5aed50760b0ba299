"""Owns what the API server's audit log says: which requests were made, by whom, and how they were answered.

Must not import the product.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.support.control_plane.api import Json


@dataclass(frozen=True)
class AuditRecord:
    """One request, once, however many stages the log has of it. `code` is None while it runs, as an open watch does."""

    audit_id: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    user: str
    user_agent: str
    uri: str
    received_at: datetime
    code: int | None
    body: Any  # what was sent, for service accounts of the policy's namespace only

    def __str__(self) -> str:
        path = "/".join(part for part in (self.resource, self.name, self.subresource) if part)
        return f"{self.verb} {path or self.uri} {self.code}"


def policy(namespace: str, others: str = "Metadata") -> Json:
    """The audit policy: requests of this namespace's service accounts with what was sent, `others` at that level.

    RequestReceived is logged before the handler runs, in blocking mode: whatever a client has had an answer to is in
    the log already, so counting those can never come too early. The API server's own loopback traffic is left out.
    """
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "rules": [
            {"level": "None", "users": ["system:apiserver"]},
            {"level": "Request", "userGroups": [f"system:serviceaccounts:{namespace}"]},
            {"level": others},
        ],
    }


def settled(log: Path, user: str | None, since: int, settle_s: float) -> list[AuditRecord]:
    """The requests of `user` (None: of all) after byte `since`, in the order they came in, each once.

    Waits up to `settle_s` seconds until each has its status, open watches apart. AssertionError naming those that have
    none by then.
    """
    deadline_s = time.monotonic() + settle_s
    while True:
        records = [record for record in read(log, since) if user in (None, record.user)]
        # 1.20 logs a watch's ResponseStarted when the watch ends, not when it starts: nothing to wait for.
        pending = [record for record in records if record.code is None and record.verb != "watch"]
        if not pending:
            return records
        assert time.monotonic() < deadline_s, f"unanswered after {settle_s:g} s: {', '.join(map(str, pending))}"
        time.sleep(0.01)


def read(log: Path, since: int = 0) -> list[AuditRecord]:
    """The requests whose first stage is after byte `since`, in order, with the latest stage's status."""
    with log.open("rb") as file:
        file.seek(since)
        lines = file.read().split(b"\n")[:-1]  # what follows the last newline is still being written
    first: dict[str, Json] = {}
    last: dict[str, Json] = {}
    for line in lines:
        event = json.loads(line)
        if event["stage"] == "RequestReceived":
            first[event["auditID"]] = event
        last[event["auditID"]] = event
    return [_record(first[audit_id], last[audit_id]) for audit_id in first]


def _record(first: Json, last: Json) -> AuditRecord:
    target = first.get("objectRef", {})
    return AuditRecord(
        audit_id=first["auditID"],
        verb=first["verb"],
        resource=target.get("resource", ""),
        subresource=target.get("subresource", ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        user=first["user"]["username"],
        user_agent=first.get("userAgent", ""),
        uri=first["requestURI"],
        received_at=datetime.fromisoformat(first["requestReceivedTimestamp"]),
        code=last.get("responseStatus", {}).get("code"),
        body=last.get("requestObject"),
    )
