"""The form in which results leave the guest: a frame with an end marker around JSON.

Guest and host both import it, so that the marker is written once. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tests.support.kernel.tools import KernelTierError

BEGIN = b"\n=== driver-manager guest results begin ===\n"
END = b"\n=== driver-manager guest results end, sha256 %s ===\n"


@dataclass
class GuestCase:
    """The guest's result of one test; `failure` and `skipped` are texts, empty where it passed.

    Of a module that could not be imported, `is_collected` is False and `failure` says why.
    """

    duration_s: float = 0.0
    failure: str = ""
    skipped: str = ""
    is_collected: bool = True


def framed(cases: Mapping[str, GuestCase]) -> bytes:
    """The cases by node id, as they are sent over the serial port."""
    data = json.dumps({node_id: asdict(case) for node_id, case in cases.items()}).encode()
    return BEGIN + data + END % hashlib.sha256(data).hexdigest().encode()


def parsed(sent: bytes) -> dict[str, GuestCase]:
    """The cases by node id, out of what arrived on the serial port.

    Raises KernelTierError where a marker is missing or the content does not fit its checksum, and for a module that the
    guest could not collect.
    """
    _, begin, rest = sent.partition(BEGIN)
    if not begin:
        raise KernelTierError("the guest sent no results")
    data, end, checksum = rest.rpartition(END.partition(b"%s")[0])
    if not end:
        raise KernelTierError("the guest's results have no end marker: it died while sending them")
    if END % hashlib.sha256(data).hexdigest().encode() != end + checksum:
        raise KernelTierError("the guest's results do not fit their checksum")
    cases = {node_id: GuestCase(**case) for node_id, case in json.loads(data).items()}
    for node_id, case in cases.items():
        if not case.is_collected:
            raise KernelTierError(f"the guest could not collect {node_id}:\n{case.failure}")
    return cases
