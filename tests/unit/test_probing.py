"""Exit status 0 is not health, and what cannot be understood is unknown, neither healthy nor unhealthy."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.model import Health
from driver_manager.domain.probing import PARSERS, TIMED_OUT, parse


def smi(*states: str) -> str:
    return json.dumps({"devices": [{"name": f"rbln{place}", "status": state} for place, state in enumerate(states)]})


@pytest.mark.parametrize(
    ("status", "out", "health", "said"),
    [
        (0, smi("normal"), Health.HEALTHY, "1 device(s) normal"),
        (0, smi("normal", "normal"), Health.HEALTHY, "2 device(s) normal"),
        (0, smi("normal", "error"), Health.UNHEALTHY, "rbln1 is error"),
        (0, smi("hang", "error"), Health.UNHEALTHY, "rbln0 is hang; rbln1 is error"),
        (0, smi(), Health.UNHEALTHY, "sees no device"),
        (0, "", Health.UNKNOWN, "did not print"),
        (0, "garbage", Health.UNKNOWN, "did not print"),
        (0, "[]", Health.UNKNOWN, "did not print"),
        (0, "null", Health.UNKNOWN, "did not print"),
        (0, '{"devices": 1}', Health.UNKNOWN, "did not print"),
        (0, '{"devices": [{"name": "rbln0"}]}', Health.UNKNOWN, "did not print"),
        (0, '{"devices": ["rbln0"]}', Health.UNKNOWN, "did not print"),
        (0, "[" * 100_000, Health.UNKNOWN, "did not print"),
        (184, smi("normal"), Health.UNHEALTHY, "last line"),
        (TIMED_OUT, smi("normal"), Health.UNHEALTHY, "last line"),
    ],
)
def test_rbln_smi_is_read_device_by_device(status: int, out: str, health: Health, said: str) -> None:
    result = parse("rbln-smi", status, out, "last line")
    assert result.health is health
    assert said in result.reason


@pytest.mark.parametrize(("status", "health"), [(0, Health.HEALTHY), (1, Health.UNHEALTHY), (-9, Health.UNHEALTHY)])
def test_the_exit_status_parser_reads_nothing_else(status: int, health: Health) -> None:
    assert parse("exit-status", status, "whatever", "last line").health is health


@pytest.mark.parametrize("parser", PARSERS)
def test_a_hung_probe_is_a_failure(parser: str) -> None:
    assert parse(parser, TIMED_OUT, smi("normal"), "no end after 20 s").health is Health.UNHEALTHY


@given(st.sampled_from(sorted(PARSERS)), st.integers(-64, 255), st.text())
def test_no_output_breaks_a_parser(parser: str, status: int, out: str) -> None:
    assert parse(parser, status, out, "said").reason
