"""The rebooter's metrics: reboots by reason, and since when one is asked for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from driver_manager.domain.reboot.state import (
    Attempt,
    Pending,
    RebootRequest,
    Record,
    decode_reboot_record,
    encode_reboot_record,
    reboot_families,
)

REQUEST = RebootRequest("boot-1", "recovery", 1_700_000_000)
ASKED = Record(announced=REQUEST, announced_s=1_700_000_030)


def found(record: Record) -> dict[tuple[str, ...], float]:
    """Every value by name and labels."""
    return {
        (family.name.removeprefix("driver_manager_"), *labels.values()): value
        for family in reboot_families(record)
        for labels, value in family.values
    }


def test_nothing_is_asked_for() -> None:
    values = found(Record())
    assert values
    assert not any(values.values())


def test_reboots_are_counted_by_reason_and_stay_counted_when_attempts_are_forgotten() -> None:
    record = Record()
    for number in range(60):
        record = record.counting(Attempt(number, "upgrade" if number % 3 else "recovery"))
    values = found(decode_reboot_record(encode_reboot_record(record)))
    assert (values["reboots_total", "upgrade"], values["reboots_total", "recovery"]) == (40, 20)
    assert len(record.attempts) < 60


def test_a_request_has_its_time_by_its_reason() -> None:
    values = found(ASKED)
    assert values["reboot_requested_timestamp_seconds", "recovery"] == 1_700_000_030
    assert values["reboot_requested_timestamp_seconds", "upgrade"] == 0
    older = replace(ASKED, announced_s=0)
    assert found(older)["reboot_requested_timestamp_seconds", "recovery"] == 1_700_000_000
    assert found(replace(ASKED, announced=None))["reboot_requested_timestamp_seconds", "recovery"] == 0


@pytest.mark.parametrize("refused_s", [None, 4.0])
def test_a_reboot_under_way_and_a_host_that_refuses_it_are_told(refused_s: float | None) -> None:
    values = found(replace(ASKED, pending=Pending(REQUEST, "uid", refused_s=refused_s)))
    assert (values["reboot_under_way",], values["reboot_refused",]) == (1, refused_s is not None)


def test_an_escalation_is_of_the_request_that_is_asked_for_now() -> None:
    assert found(replace(ASKED, escalated=REQUEST.key))["reboot_escalated",] == 1
    assert found(replace(ASKED, escalated="another"))["reboot_escalated",] == 0
    assert found(Record(escalated=REQUEST.key))["reboot_escalated",] == 0


def test_what_an_older_version_wrote_is_read_and_a_newer_field_is_written_only_where_it_says_something() -> None:
    text = encode_reboot_record(Record())
    assert "reboots" not in text
    assert "announcedAt" not in text
    assert decode_reboot_record(text) == Record()
    full = replace(ASKED, reboots={"recovery": 2})
    assert decode_reboot_record(encode_reboot_record(full)) == full
