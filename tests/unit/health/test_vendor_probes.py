"""What each vendor's tool was recorded to print is read device by device, and what it does not print is not health.

The recordings in golden/probes are from public repositories: amd-smi from a test of a hardware inventory in Go,
furiosa-smi from a report on RNGD cards, tt-smi from the tests of a monitor in Rust. hl-smi's line has the fields of a
recorded one (index, name, bus_id, …) in the order that the profile asks for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from driver_manager.domain.health.parsers import parse
from driver_manager.domain.host import TIMED_OUT, Health
from tests.support.fakes.builders import PROFILES

PROBES = Path(__file__).parents[1] / "golden/probes"
AMD, FURIOSA, GAUDI, TT = (
    (PROBES / name).read_text()
    for name in ("amd-smi-list.json", "furiosa-smi-status.json", "hl-smi-query.csv", "tt-smi-snapshot.json")
)
RECORDED = [
    ("amd-smi-list", AMD, "0000:c4:00.0", "1 device(s) listed"),
    ("furiosa-smi", FURIOSA, "", "1 device(s) alive"),
    ("hl-smi", GAUDI, "0000:3b:00.0", "1 device(s) listed"),
    ("tt-smi", TT, "0000:04:00.0", "1 device(s) answering"),
]


@pytest.mark.parametrize(("parser", "out", "address", "said"), RECORDED, ids=lambda one: one[:12])
def test_a_recorded_output_is_a_healthy_device(parser: str, out: str, address: str, said: str) -> None:
    result = parse(parser, 0, out, "", (address or "0000:03:00.0",))
    assert (result.health, result.reason) == (Health.HEALTHY, said)
    assert [device.address for device in result.devices] == [address]


@pytest.mark.parametrize(("parser", "out", "address", "said"), RECORDED, ids=lambda one: one[:12])
def test_a_device_that_pci_has_and_the_tool_does_not_show_is_missing(
    parser: str, out: str, address: str, said: str
) -> None:
    result = parse(parser, 0, out, "", (address or "0000:03:00.0", "0000:ff:00.0"))
    assert result.health is Health.UNHEALTHY
    assert "1 of 2 PCI devices seen" in result.reason
    assert said not in result.reason


@pytest.mark.parametrize("parser", [parser for parser, *_ in RECORDED])
@pytest.mark.parametrize(
    ("status", "out", "health"),
    [
        (1, "", Health.UNHEALTHY),
        (-9, "", Health.UNKNOWN),
        (TIMED_OUT, "", Health.UNHEALTHY),
        (0, "garbage", Health.UNKNOWN),
        (0, "[1]", Health.UNKNOWN),
        (0, "[" * 100_000, Health.UNKNOWN),
    ],
)
def test_a_tool_that_fails_is_unhealthy_and_one_that_is_not_understood_unknown(
    parser: str, status: int, out: str, health: Health
) -> None:
    assert parse(parser, status, out, "last line").health is health


@pytest.mark.parametrize(
    ("parser", "empty"),
    [("amd-smi-list", "[]"), ("furiosa-smi", "[]"), ("hl-smi", "\n"), ("tt-smi", '{"device_info": []}')],
)
def test_no_device_at_all_is_unhealthy(parser: str, empty: str) -> None:
    result = parse(parser, 0, empty, "")
    assert (result.health, result.devices) == (Health.UNHEALTHY, ())
    assert "sees no device" in result.reason


def changed(text: str, **fields: Any) -> str:
    """A recorded list with other fields in its first entry."""
    body = json.loads(text)
    body[0] |= fields
    return json.dumps(body)


def test_an_npu_that_is_not_alive_is_unhealthy() -> None:
    result = parse("furiosa-smi", 0, changed(FURIOSA, liveness="dead"), "")
    assert (result.health, result.reason) == (Health.UNHEALTHY, "npu0 is dead")


def test_an_npu_of_which_a_process_has_a_processing_element_is_at_work() -> None:
    assert parse("furiosa-smi", 0, FURIOSA, "").busy == ()
    used = [{"pe_core": 0, "pe_occupancy": False}, {"pe_core": 1, "pe_occupancy": True}]
    assert parse("furiosa-smi", 0, changed(FURIOSA, pe_utilizations=used), "").busy == ("npu0",)


@pytest.mark.parametrize(("contexts", "busy"), [([], ()), ([{}, {}], ("2 context(s)",))])
def test_contexts_of_rebellions_are_work(contexts: list[object], busy: tuple[str, ...]) -> None:
    body = {"devices": [{"name": "rbln0", "status": "normal"}], "contexts": contexts}
    assert parse("rbln-smi", 0, json.dumps(body), "").busy == busy


def test_a_partitioned_gpu_is_one_pci_function() -> None:
    entry = json.loads(AMD)[0]
    out = json.dumps([entry, entry | {"gpu": 1, "partition_id": 1}])
    assert parse("amd-smi-list", 0, out, "", ("0000:c4:00.0",)).health is Health.HEALTHY
    assert parse("amd-smi-list", 0, out, "", ("0000:c4:00.0", "0000:c5:00.0")).health is Health.UNHEALTHY


def test_a_gpu_that_takes_no_work_is_not_healthy() -> None:
    found = parse("amd-smi-list", 0, json.dumps([json.loads(AMD)[0] | {"kfd_id": "N/A"}]), "", ("0000:c4:00.0",))
    assert (found.health, found.reason) == (Health.UNKNOWN, "gpu 0 is without a kfd_id")


def tt(**board: Any) -> str:
    body = json.loads(TT)
    body["device_info"][0]["board_info"] |= board
    return json.dumps(body)


def test_a_chip_whose_dram_is_down_or_that_reports_nothing_is_unhealthy() -> None:
    assert "without its DRAM" in parse("tt-smi", 0, tt(dram_status=False), "").reason
    assert parse("tt-smi", 0, tt(dram_status=True), "").health is Health.HEALTHY
    silent = json.loads(TT)
    silent["device_info"][0]["telemetry"] = {}
    assert "without telemetry" in parse("tt-smi", 0, json.dumps(silent), "").reason


def test_a_chip_behind_another_does_not_stand_in_for_one_on_the_bus() -> None:
    body = json.loads(TT)
    remote = json.loads(tt(bus_id="N/A"))["device_info"][0]
    body["device_info"].append(remote)
    assert parse("tt-smi", 0, json.dumps(body), "", ("0000:04:00.0", "0000:05:00.0")).health is Health.UNHEALTHY


def test_a_line_that_breaks_off_is_not_understood() -> None:
    assert parse("hl-smi", 0, GAUDI.rstrip("\n"), "").health is Health.UNKNOWN
    assert "without a name" in parse("hl-smi", 0, "0, 0000:3b:00.0, N/A\n", "").reason


@pytest.mark.parametrize(
    ("name", "parser"),
    [("amd", "amd-smi-list"), ("furiosa", "furiosa-smi"), ("gaudi", "hl-smi"), ("tenstorrent", "tt-smi")],
)
def test_each_profile_asks_the_tool_whose_output_its_parser_reads(name: str, parser: str) -> None:
    probe = PROFILES[name].probe
    assert probe is not None
    assert probe.parser == parser
