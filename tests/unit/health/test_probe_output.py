"""Exit status 0 is not health, and what cannot be understood is unknown, neither healthy nor unhealthy."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.health.parsers import PARSERS, parse, pci_address
from driver_manager.domain.host import TIMED_OUT, Health


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
        (0, "", Health.UNKNOWN, "unexpected output"),
        (0, "garbage", Health.UNKNOWN, "unexpected output"),
        (0, "[]", Health.UNKNOWN, "unexpected output"),
        (0, "null", Health.UNKNOWN, "unexpected output"),
        (0, '{"devices": 1}', Health.UNKNOWN, "unexpected output"),
        (0, '{"devices": [{"name": "rbln0"}]}', Health.UNKNOWN, "unexpected output"),
        (0, '{"devices": ["rbln0"]}', Health.UNKNOWN, "unexpected output"),
        (0, "[" * 100_000, Health.UNKNOWN, "unexpected output"),
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
    assert parse(parser, TIMED_OUT, smi("normal"), "timed out after 20 s").health is Health.UNHEALTHY


@given(st.sampled_from(sorted(PARSERS)), st.integers(-64, 255), st.text())
def test_no_output_breaks_a_parser(parser: str, status: int, out: str) -> None:
    assert parse(parser, status, out, "said").reason


# nvidia-smi

GPUS = (
    "0, 00000000:C1:00.0, NVIDIA A100-SXM4-80GB, 31, Enabled\n1, 00000000:C2:00.0, NVIDIA A100-SXM4-80GB, 33, [N/A]\n"
)
BOTH = ("0000:c1:00.0", "0000:c2:00.0")


@pytest.mark.parametrize(
    ("status", "out", "health", "said"),
    [
        (0, GPUS, Health.HEALTHY, "2 device(s) without errors"),
        (0, GPUS.replace("33,", "[GPU requires reset],"), Health.UNHEALTHY, "gpu 1 is GPU requires reset"),
        (0, GPUS.replace("31,", "[Unknown Error],"), Health.UNHEALTHY, "gpu 0 is Unknown Error"),
        (0, GPUS.replace("31,", "ERR!,"), Health.UNHEALTHY, "gpu 0 is ERR!"),
        (0, GPUS.replace("31,", "[Not Supported],"), Health.HEALTHY, "2 device(s)"),
        (0, GPUS.splitlines(keepends=True)[0], Health.UNHEALTHY, "1 of 2 PCI devices seen; 0000:c2:00.0 missing"),
        (0, GPUS[:-1], Health.UNKNOWN, "unexpected output"),
        (0, GPUS[: GPUS.index("C2")], Health.UNKNOWN, "unexpected output"),
        (0, GPUS.replace("31,", "ERR!,")[:-10], Health.UNHEALTHY, "gpu 0 is ERR!"),
        (0, "", Health.UNKNOWN, "unexpected output"),
        (0, "garbage\n", Health.UNKNOWN, "unexpected output"),
        (0, "No devices were found\n", Health.UNHEALTHY, "sees no device"),
        (2, "", Health.UNKNOWN, "exit status 2"),
        (12, "", Health.UNKNOWN, "exit status 12"),
        (9, "", Health.UNHEALTHY, "exit status 9: last line"),
        (15, "", Health.UNHEALTHY, "exit status 15"),
        (255, "", Health.UNHEALTHY, "exit status 255"),
        (-15, "", Health.UNKNOWN, "killed from outside"),
    ],
)
def test_nvidia_smi_is_read_gpu_by_gpu(status: int, out: str, health: Health, said: str) -> None:
    result = parse("nvidia-smi", status, out, "last line", BOTH)
    assert result.health is health
    assert said in result.reason


# what all have in common


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("status", [126, 127])
def test_a_tool_that_is_not_there_says_nothing_of_the_device(parser: str, status: int) -> None:
    assert parse(parser, status, "", "npu-smi: not found").health is Health.UNKNOWN


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("00000000:C1:00.0", "0000:c1:00.0"),
        ("00010000:01:00.1", "10000:01:00.1"),
        ("C1:00.0", "0000:c1:00.0"),
        ("NA", ""),
        ("", ""),
    ],
)
def test_a_pci_address_is_written_as_sysfs_does(text: str, address: str) -> None:
    assert pci_address(text) == address


def test_rbln_smi_devices_are_matched_with_the_bus_by_address_or_else_by_number() -> None:
    body = {"devices": [{"name": "rbln0", "status": "normal", "pci": {"bus_id": "0000:C1:00.0", "dev": "0x1220"}}]}
    assert parse("rbln-smi", 0, json.dumps(body), "", ("0000:c1:00.0",)).health is Health.HEALTHY
    assert "0000:c2:00.0 missing" in parse("rbln-smi", 0, json.dumps(body), "", BOTH).reason
    assert parse("rbln-smi", 0, smi("normal", "normal"), "", BOTH).health is Health.HEALTHY
    assert parse("rbln-smi", 0, smi("normal"), "", BOTH).reason == "1 of 2 PCI devices seen"


ADDRESSED = {
    "amd-smi-list": lambda one: json.dumps([{"gpu": number, "bdf": at} for number, at in enumerate(one)]),
    "hl-smi": lambda one: "".join(f"{number}, {at}, HL-225\n" for number, at in enumerate(one)),
    "nvidia-smi": lambda one: "".join(f"{number}, {at}, A100\n" for number, at in enumerate(one)),
    "rbln-smi": lambda one: json.dumps(
        {"devices": [{"name": n, "status": "normal", "pci": {"bus_id": at}} for n, at in zip("ab", one, strict=True)]}
    ),
    "tt-smi": lambda one: json.dumps(
        {"device_info": [{"board_info": {"bus_id": at, "board_type": "n150"}, "telemetry": {"a": 1}} for at in one]}
    ),
}


@pytest.mark.parametrize("parser", ADDRESSED)
@pytest.mark.parametrize("other", [BOTH[0], "0000:f1:00.0", "N/A"])
def test_a_device_is_missing_though_there_are_as_many_rows_as_functions(parser: str, other: str) -> None:
    assert parse(parser, 0, ADDRESSED[parser](BOTH), "said", BOTH).health is Health.HEALTHY
    result = parse(parser, 0, ADDRESSED[parser]((BOTH[0], other)), "said", BOTH)
    is_cut = other == "N/A" and parser in ("hl-smi", "nvidia-smi")  # a line without an address is taken for half a line
    assert result.health is (Health.UNKNOWN if is_cut else Health.UNHEALTHY)
    assert is_cut or "1 of 2 PCI devices seen; 0000:c2:00.0 missing" in result.reason


@pytest.mark.parametrize(
    ("parser", "out"),
    [
        ("rbln-smi", json.dumps({"devices": [{"name": "rbln0", "status": "normal"}] * 2})),
        ("furiosa-smi", json.dumps([{"device": "npu0", "liveness": "alive"}] * 2)),
    ],
)
def test_a_device_that_is_listed_twice_does_not_count_twice(parser: str, out: str) -> None:
    assert parse(parser, 0, out, "said", BOTH).health is Health.UNKNOWN


@given(st.sampled_from(sorted(PARSERS)), st.integers(-64, 255), st.text(), st.integers(0, 3))
def test_nothing_but_exit_status_0_is_healthy(parser: str, status: int, out: str, present: int) -> None:
    if status:
        assert parse(parser, status, out, "said", BOTH[:present]).health is not Health.HEALTHY


def test_half_a_character_in_json_can_be_written() -> None:
    out = '{"devices": [{"name": "rbln0\\ud800", "status": "bad\\udfff", "pci": {}}]}'
    result = parse("rbln-smi", 0, out, "last line")
    assert [(device.name, device.reason) for device in result.devices] == [("rbln0?", "bad?")]
    assert result.reason.encode() == b"rbln0? is bad?"


@pytest.mark.parametrize("parser", ["amd-smi-list", "rbln-smi"])
@pytest.mark.parametrize("present", [(), BOTH[:1], BOTH, (*BOTH, "0000:c3:00.0")], ids=len)
def test_a_tool_whose_addresses_cannot_be_read_does_not_tell_which_functions_it_serves(
    parser: str, present: tuple[str, ...]
) -> None:
    result = parse(parser, 0, ADDRESSED[parser](("N/A", "N/A")), "said", present)
    assert (result.health, result.reason) == (Health.UNKNOWN, "no device has a PCI address that can be read")
    assert len(result.devices) == 2


def test_the_same_gpu_twice_without_an_address_is_not_two() -> None:
    out = json.dumps([{"gpu": 0, "bdf": "N/A", "kfd_id": 1}] * 2)
    assert parse("amd-smi-list", 0, out, "said", BOTH).health is Health.UNKNOWN


def test_a_bad_device_without_an_address_counts() -> None:
    body = {"devices": [{"name": "rbln0", "status": "hung", "pci": {"bus_id": "N/A"}}]}
    result = parse("rbln-smi", 0, json.dumps(body), "said", BOTH)
    assert (result.health, result.reason) == (Health.UNHEALTHY, "rbln0 is hung")
