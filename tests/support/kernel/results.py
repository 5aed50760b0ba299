"""The form in which results leave the guest: a frame with an end marker around JUnit XML.

Guest and host both import it, so that the marker is written once. Standard library only.
"""

from __future__ import annotations

import hashlib
import xml.etree.ElementTree as ET
from dataclasses import dataclass

from tests.support.kernel.tools import KernelTierError

BEGIN = b"\n=== driver-manager guest results begin ===\n"
END = b"\n=== driver-manager guest results end, sha256 %s ===\n"
NODE_ID_PROPERTY = "guest_node_id"


@dataclass(frozen=True)
class GuestCase:
    """What the guest said about one test; `failure` and `skipped` are texts, empty where it passed."""

    node_id: str
    duration_s: float
    failure: str = ""
    skipped: str = ""


def framed(xml: bytes) -> bytes:
    """`xml` as it is sent over the serial port."""
    return BEGIN + xml + END % hashlib.sha256(xml).hexdigest().encode()


def unframed(sent: bytes) -> bytes:
    """The XML out of what arrived on the serial port.

    Raises KernelTierError where the begin or the end marker is missing or the content does not fit its checksum.
    """
    _, begin, rest = sent.partition(BEGIN)
    if not begin:
        raise KernelTierError("the guest sent no results")
    marker, _, _ = END.partition(b"%s")
    xml, end, checksum = rest.rpartition(marker)
    if not end:
        raise KernelTierError("the guest's results have no end marker: it died while sending them")
    if framed(xml) != BEGIN + xml + end + checksum:
        raise KernelTierError("the guest's results do not fit their checksum")
    return xml


def parsed(xml: bytes) -> dict[str, GuestCase]:
    """The guest's cases by node id; a test with an error in teardown appears twice in JUnit and once here.

    Raises KernelTierError where the XML cannot be read or a case lacks its node id (a module that cannot be imported).
    """
    try:
        root = ET.fromstring(xml)  # noqa: S314 - the XML is our own guest's
    except ET.ParseError as error:
        raise KernelTierError(f"the guest's results are not XML: {error}") from error
    cases: dict[str, GuestCase] = {}
    for element in root.iter("testcase"):
        case = _case(element)
        known = cases.get(case.node_id)
        cases[case.node_id] = case if known is None else _merged(known, case)
    return cases


def _case(element: ET.Element) -> GuestCase:
    failure = "\n".join(_text(child) for child in element if child.tag in ("failure", "error"))
    properties = {item.get("name"): item.get("value") for item in element.iter("property")}
    node_id = properties.get(NODE_ID_PROPERTY)
    if node_id is None:
        raise KernelTierError(f"the guest could not collect {element.get('classname')}:\n{failure}")
    output = "\n".join(_text(child) for child in element if child.tag in ("system-out", "system-err"))
    return GuestCase(
        node_id,
        float(element.get("time", "0")),
        failure=f"{failure}\n{output}".strip() if failure else "",
        skipped=next((child.get("message") or "skipped" for child in element if child.tag == "skipped"), ""),
    )


def _merged(one: GuestCase, other: GuestCase) -> GuestCase:
    return GuestCase(
        one.node_id,
        one.duration_s + other.duration_s,
        failure="\n".join(text for text in (one.failure, other.failure) if text),
        skipped=one.skipped or other.skipped,
    )


def _text(element: ET.Element) -> str:
    return element.text or element.get("message") or ""
