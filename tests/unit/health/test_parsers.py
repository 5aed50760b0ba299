"""Parsers of the vendors' tools: exit status 0 is not health, and output that is not understood is unknown.

The recordings in golden/probes are from public repositories: amd-smi from a test of a hardware inventory in Go,
furiosa-smi from a report on RNGD cards, tt-smi from the tests of a monitor in Rust. hl-smi's line has the fields of a
recorded one (index, name, bus_id, …) in the order that the profile requests.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.health import parsers
from driver_manager.domain.health.parsers import PARSERS, pci_address
from driver_manager.domain.host import TIMED_OUT, Health, ProbeResult
from tests.support.fakes.builders import PROFILES

GOLDEN = Path(__file__).parents[1] / "golden"
Bus = tuple[str, ...]
BOTH = ("0000:c1:00.0", "0000:c2:00.0")
GOOD, BAD, UNCLEAR = Health.HEALTHY, Health.UNHEALTHY, Health.UNKNOWN
UNEXPECTED = "unexpected output"


SHIPPED = {one.probe.parser: one.probe for one in PROFILES.values() if one.probe is not None}
NPU_SMI = SHIPPED["npu-smi"]
PROBES = {name: SHIPPED.get(name, replace(NPU_SMI, parser=name)) for name in PARSERS}
"""The probe of the shipped profile with each parser; that of Ascend for those that none has."""


def parse(parser: str, *given: Any, **more: Any) -> ProbeResult:
    return parsers.parse(PROBES[parser], *given, **more)


def check(result: ProbeResult, health: Health, reason: str) -> None:
    assert (result.health, reason in result.reason) == (health, True), result


# all parsers


@pytest.mark.parametrize("parser", sorted({*PARSERS} - {"exit-status"}))
def test_a_tool_that_fails_is_unhealthy_and_output_that_is_not_understood_is_unknown(parser: str) -> None:
    for status, out, health, reason in (
        (1, "", BAD, "last line"),
        *((status, "", UNCLEAR, "killed from outside") for status in (-9, -15)),
        *((0, out, UNCLEAR, UNEXPECTED) for out in ("garbage", "garbage\n", "[1]", "null", "[" * 100_000)),
    ):
        check(parse(parser, status, out, "last line"), health, reason)


def test_a_tool_that_hangs_is_a_failure_and_one_that_is_missing_is_unknown() -> None:
    missing = ProbeResult(UNCLEAR, "npu-smi: not found", is_tool_broken=True)
    for parser in PARSERS:
        check(parse(parser, TIMED_OUT, "", "timed out after 20 s"), BAD, "timed out after 20 s")
        assert [parse(parser, status, "", "npu-smi: not found") for status in (126, 127)] == [missing] * 2
    found = {status: parse("exit-status", status, "any", "last line").health for status in (0, 1, -9)}
    assert found == {0: GOOD, 1: BAD, -9: UNCLEAR}


@given(st.sampled_from(sorted(PARSERS)), st.integers(-64, 255), st.text(), st.sampled_from([(), BOTH[:1], BOTH]))
def test_no_output_breaks_a_parser_and_only_exit_status_0_is_healthy(
    name: str, status: int, out: str, bus: Bus
) -> None:
    result = parse(name, status, out, "last line", bus)
    assert result.reason
    assert not status or result.health is not GOOD


def test_a_pci_address_is_written_as_sysfs_does() -> None:
    texts = ("0000:C1:00.0", "00000000:C1:00.0", "C1:00.0", "00010000:01:00.1", "NA", "")
    assert [pci_address(text) for text in texts] == [*["0000:c1:00.0"] * 3, "10000:01:00.1", "", ""]


ADDRESSED: dict[str, Callable[[Bus], str]] = {
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
"""The output of each tool that prints addresses, for two healthy devices."""


@pytest.mark.parametrize("parser", ADDRESSED)
@pytest.mark.parametrize("other", [BOTH[0], "0000:f1:00.0", "N/A"])
def test_a_device_is_missing_though_there_are_as_many_rows_as_functions(parser: str, other: str) -> None:
    assert parse(parser, 0, ADDRESSED[parser](BOTH), "", BOTH).health is GOOD
    result = parse(parser, 0, ADDRESSED[parser]((BOTH[0], other)), "", BOTH)
    if other == "N/A" and parser in ("hl-smi", "nvidia-smi"):  # a line without an address counts as half a line
        check(result, UNCLEAR, UNEXPECTED)
    else:
        check(result, BAD, "1 of 2 PCI devices seen; 0000:c2:00.0 missing")


@pytest.mark.parametrize("parser", ["amd-smi-list", "rbln-smi"])
def test_without_a_readable_address_the_served_functions_are_unknown(parser: str) -> None:
    for present in ((), BOTH[:1], BOTH, (*BOTH, "0000:c3:00.0")):
        result = parse(parser, 0, ADDRESSED[parser](("N/A", "N/A")), "", present)
        # A chip of a system on a chip (310B) is no PCI function.
        unread = "no device has a PCI address that can be read"
        check(result, *((UNCLEAR, unread) if present else (GOOD, "2 device(s)")))
        assert len(result.devices) == 2


# tools of one vendor


def rbln(*states: str, **body: Any) -> str:
    return json.dumps({"devices": [{"name": f"rbln{n}", "status": one} for n, one in enumerate(states)], **body})


def recorded(name: str, entry: Callable[[Any], Any] = lambda body: body[0], **fields: Any) -> str:
    """A recorded output, with other fields in an entry."""
    text = (GOLDEN / "probes" / name).read_text()
    if not fields:
        return text
    body = json.loads(text)
    entry(body).update(fields)
    return json.dumps(body)


def tt(**fields: Any) -> str:
    return recorded("tt-smi-snapshot.json", lambda body: body["device_info"][0]["board_info"], **fields)


AMD, FURIOSA, GAUDI = "amd-smi-list.json", "furiosa-smi-status.json", "hl-smi-query.csv"
AMD_ENTRY = json.loads(recorded(AMD))[0]
TT_BEHIND = {"device_info": [*json.loads(tt())["device_info"], *json.loads(tt(bus_id="N/A"))["device_info"]]}
TT_SILENT = recorded("tt-smi-snapshot.json", lambda body: body["device_info"][0], telemetry={})
PCI = {"bus_id": "0000:C1:00.0", "dev": "0x1220"}
GPU_0 = "0, 00000000:C1:00.0, NVIDIA A100, 31, Enabled\n"
GPUS = f"{GPU_0}1, 00000000:C2:00.0, NVIDIA A100, 33, [N/A]\n"
INFOROM = "WARNING: infoROM is corrupted at gpu 0000:C1:00.0\n"
NO_HANDLE = "Unable to determine the device handle for GPU{}: Unknown Error\n"
FREE = {"idx": 0, "status": "available"}
BODIES = {
    "rbln by address": json.dumps({"devices": [{"name": "rbln0", "status": "normal", "pci": PCI}]}),
    "rbln without address": json.dumps({"devices": [{"name": "a", "status": "hung", "pci": {"bus_id": "N/A"}}]}),
    "rbln twice": json.dumps({"devices": [{"name": "rbln0", "status": "normal"}] * 2}),
    "furiosa twice": json.dumps([{"device": "npu0", "liveness": "alive"}] * 2),
    "amd partitions": json.dumps([AMD_ENTRY, AMD_ENTRY | {"gpu": 1, "partition_id": 1}]),
    "amd twice": json.dumps([{"gpu": 0, "bdf": "N/A", "kfd_id": 1}] * 2),
}


@pytest.mark.parametrize(
    ("parser", "status", "out", "present", "health", "reason"),
    [
        ("rbln-smi", 0, rbln("normal"), (), GOOD, "1 device(s) normal"),
        ("rbln-smi", 0, rbln("normal", "normal"), BOTH, GOOD, "2 device(s) normal"),
        ("rbln-smi", 0, rbln("normal", "error"), (), BAD, "rbln1 is error"),
        ("rbln-smi", 0, rbln("hang", "error"), (), BAD, "rbln0 is hang; rbln1 is error"),
        *(("rbln-smi", 0, rbln(), (), BAD, "sees no device"), ("rbln-smi", 0, "[]", (), UNCLEAR, UNEXPECTED)),
        ("rbln-smi", 0, '{"devices": 1}', (), UNCLEAR, UNEXPECTED),
        ("rbln-smi", 0, '{"devices": [{"name": "rbln0"}]}', (), UNCLEAR, UNEXPECTED),
        ("rbln-smi", 0, '{"devices": ["rbln0"]}', (), UNCLEAR, UNEXPECTED),
        ("rbln-smi", 184, rbln("normal"), (), BAD, "last line"),
        ("rbln-smi", 0, BODIES["rbln by address"], BOTH[:1], GOOD, "1 device(s) normal"),
        ("rbln-smi", 0, BODIES["rbln by address"], BOTH, BAD, "0000:c2:00.0 missing"),
        ("rbln-smi", 0, rbln("normal"), BOTH, BAD, "1 of 2 PCI devices seen"),
        ("rbln-smi", 0, BODIES["rbln without address"], BOTH, BAD, "a is hung"),
        ("rbln-smi", 0, BODIES["rbln twice"], BOTH, UNCLEAR, "a device twice"),
        ("furiosa-smi", 0, recorded(FURIOSA), BOTH[:1], GOOD, "1 device(s) alive"),
        ("furiosa-smi", 0, recorded(FURIOSA), BOTH, BAD, "1 of 2 PCI devices seen"),
        ("furiosa-smi", 0, "[]", (), BAD, "sees no device"),
        ("furiosa-smi", 0, recorded(FURIOSA, liveness="dead"), (), BAD, "npu0 is dead"),
        ("furiosa-smi", 0, BODIES["furiosa twice"], BOTH, UNCLEAR, "an NPU twice"),
        ("amd-smi-list", 0, recorded(AMD), ("0000:c4:00.0",), GOOD, "1 device(s) listed"),
        ("amd-smi-list", 0, recorded(AMD), ("0000:c4:00.0", "0000:ff:00.0"), BAD, "1 of 2 PCI devices seen"),
        ("amd-smi-list", 0, "[]", (), BAD, "sees no device"),
        ("amd-smi-list", 0, BODIES["amd partitions"], ("0000:c4:00.0",), GOOD, "2 device(s) listed"),
        ("amd-smi-list", 0, BODIES["amd partitions"], ("0000:c4:00.0", BOTH[0]), BAD, "0000:c1:00.0 missing"),
        ("amd-smi-list", 0, recorded(AMD, kfd_id="N/A"), ("0000:c4:00.0",), BAD, "gpu 0 is without a kfd_id"),
        ("amd-smi-list", 0, BODIES["amd twice"], BOTH, UNCLEAR, "no device has a PCI address"),
        ("hl-smi", 0, recorded(GAUDI), ("0000:3b:00.0",), GOOD, "1 device(s) listed"),
        ("hl-smi", 0, recorded(GAUDI), ("0000:3b:00.0", "0000:ff:00.0"), BAD, "1 of 2 PCI devices seen"),
        ("hl-smi", 0, "\n", (), BAD, "sees no device"),
        ("hl-smi", 0, recorded(GAUDI).rstrip("\n"), (), UNCLEAR, UNEXPECTED),
        ("hl-smi", 0, "0, 0000:3b:00.0, N/A\n", (), BAD, "without a name"),
        ("tt-smi", 0, tt(), ("0000:04:00.0",), GOOD, "1 device(s) answering"),
        ("tt-smi", 0, tt(), ("0000:04:00.0", "0000:ff:00.0"), BAD, "1 of 2 PCI devices seen"),
        ("tt-smi", 0, '{"device_info": []}', (), BAD, "sees no device"),
        ("tt-smi", 0, tt(dram_status=False), (), BAD, "without its DRAM"),
        ("tt-smi", 0, tt(dram_status=True), (), GOOD, "answering"),
        ("tt-smi", 0, TT_SILENT, (), BAD, "without telemetry"),
        ("tt-smi", 0, json.dumps(TT_BEHIND), ("0000:04:00.0", "0000:05:00.0"), BAD, "0000:05:00.0 missing"),
        ("nvidia-smi", 0, GPUS, BOTH, GOOD, "2 device(s) without errors"),
        ("nvidia-smi", 0, GPUS.replace("33,", "[GPU requires reset],"), BOTH, BAD, "gpu 1 is GPU requires reset"),
        ("nvidia-smi", 0, GPUS.replace("31,", "[Unknown Error],"), BOTH, BAD, "gpu 0 is Unknown Error"),
        ("nvidia-smi", 0, GPUS.replace("31,", "ERR!,"), BOTH, BAD, "gpu 0 is ERR!"),
        ("nvidia-smi", 0, GPUS.replace("31,", "[Not Supported],"), BOTH, GOOD, "2 device(s)"),
        ("nvidia-smi", 0, GPU_0, BOTH, BAD, "1 of 2 PCI devices seen; 0000:c2:00.0"),
        ("nvidia-smi", 0, GPUS[:-1], BOTH, UNCLEAR, UNEXPECTED),
        ("nvidia-smi", 0, GPUS[: GPUS.index("C2")], BOTH, UNCLEAR, UNEXPECTED),
        ("nvidia-smi", 0, GPUS.replace("31,", "ERR!,")[:-10], BOTH, BAD, "gpu 0 is ERR!"),
        ("nvidia-smi", 0, "", BOTH, UNCLEAR, UNEXPECTED),
        ("nvidia-smi", 0, "No devices were found\n", BOTH, BAD, "sees no device"),
        *[("nvidia-smi", status, "", BOTH, UNCLEAR, f"exit status {status}") for status in (2, 3, 4, 12, 13)],
        *[("nvidia-smi", status, "", BOTH, BAD, f"exit status {status}: last line") for status in (9, 15, 255)],
        # An infoROM warning is a remark where every GPU can be read (gpu-operator#285).
        ("nvidia-smi", 14, GPUS + INFOROM, BOTH, GOOD, "2 device(s) with a corrupted infoROM, without errors"),
        ("nvidia-smi", 0, GPUS + INFOROM, BOTH, GOOD, "2 device(s) with a corrupted infoROM, without errors"),
        ("nvidia-smi", 14, GPUS, BOTH, GOOD, "2 device(s) without errors; last line"),
        ("nvidia-smi", 14, GPU_0 + INFOROM, BOTH, BAD, "0000:c2:00.0 missing"),
        ("nvidia-smi", 14, GPUS.replace("33,", "ERR!,") + INFOROM, BOTH, BAD, "gpu 1 is ERR!"),
        ("nvidia-smi", 14, GPUS[:-1], BOTH, BAD, "exit status 14"),
        ("nvidia-smi", 10, GPUS, BOTH, BAD, "exit status 10"),
        # A lost GPU is named, and the others are listed (open-gpu-kernel-modules#387, dcgm-exporter#604).
        *[
            ("nvidia-smi", status, NO_HANDLE.format(at) + GPU_0, BOTH, BAD, "0000:c2:00.0 is lost")
            for status in (0, 15, 255)
            for at in (" 0000:C2:00.0", "0000:C2:00.0", "1: 0000:C2:00.0")
        ],
        # A line that is no row does not hide that a GPU is missing, nor that all are there.
        ("nvidia-smi", 0, "a new warning\n" + GPU_0, BOTH, BAD, "0000:c2:00.0 missing"),
        ("nvidia-smi", 0, "a new warning\n" + GPUS, BOTH, GOOD, "2 device(s)"),
        ("nvidia-smi", 0, GPU_0 + "1, ?\n", BOTH, UNCLEAR, UNEXPECTED),
        ("nvidia-smi", 0, GPU_0 + "1, ?\n", (*BOTH, "0000:c3:00.0"), BAD, "1 of 3"),
        # Lines of a log before JSON (ROCm/amdsmi#130), a chip that the compute driver lost, an older board's firmware.
        ("amd-smi-list", 0, "WARNING: User is missing groups: [render]\n" + recorded(AMD), (), GOOD, "1 device(s)"),
        ("amd-smi-list", 0, "[warning]\n" + recorded(AMD), (), GOOD, "1 device(s)"),
        ("tt-smi", 0, "2026-05-21 17:44:38.393 | error | UMD | [x]\n" + tt(), (), GOOD, "1 device(s)"),
        ("tt-smi", 0, tt(dram_status=False, board_type="p100a"), (), GOOD, "answering"),
        ("furiosa-smi", 0, recorded(FURIOSA, pe_utilizations=[{"pe_core": 0}], cores=[FREE]), BOTH[:1], GOOD, "alive"),
        # A version that does not know the option.
        *[
            (name, 2, "error: unexpected argument\n", BOTH, UNCLEAR, f"{PROBES[name].tool} failed with exit status 2")
            for name in ("amd-smi-list", "furiosa-smi", "rbln-smi", "tt-smi")
        ],
    ],
)
def test_output_is_read_device_by_device(
    parser: str, status: int, out: str, present: Bus, health: Health, reason: str
) -> None:
    check(parse(parser, status, out, "last line", present), health, reason)


def test_devices_have_the_addresses_that_the_tool_prints() -> None:
    outputs = {
        "amd-smi-list": recorded(AMD),
        "hl-smi": recorded(GAUDI),
        "tt-smi": tt(),
        "furiosa-smi": recorded(FURIOSA),
    }
    found = {parser: [one.address for one in parse(parser, 0, out, "").devices] for parser, out in outputs.items()}
    addresses = {"amd-smi-list": "0000:c4:00.0", "hl-smi": "0000:3b:00.0", "tt-smi": "0000:04:00.0", "furiosa-smi": ""}
    assert found == {parser: [address] for parser, address in addresses.items()}


def test_a_device_in_use_is_busy() -> None:
    in_use = [FREE, FREE | {"status": "occupied"}]
    used = [{"pe_core": 0, "pe_occupancy": False}, {"pe_core": 1, "pe_occupancy": True}]
    for parser, out, busy in (
        ("furiosa-smi", recorded(FURIOSA), ()),
        ("furiosa-smi", recorded(FURIOSA, pe_utilizations=used), ("npu0",)),
        ("furiosa-smi", recorded(FURIOSA, pe_utilizations=[], cores=in_use), ("npu0",)),
        ("rbln-smi", rbln("normal", contexts=[]), ()),
        ("rbln-smi", rbln("normal", contexts=[{}, {}]), ("2 context(s)",)),
    ):
        assert parse(parser, 0, out, "").busy == busy, out


def test_half_a_character_in_json_can_be_written() -> None:
    out = '{"devices": [{"name": "rbln0\\ud800", "status": "bad\\udfff", "pci": {}}]}'
    assert parse("rbln-smi", 0, out, "last line").reason.encode() == b"rbln0? is bad?"


def test_each_profile_names_the_parser_of_its_tool() -> None:
    tools = {"amd": "amd-smi-list", "furiosa": "furiosa-smi", "gaudi": "hl-smi", "tenstorrent": "tt-smi"}
    assert {name: probe.parser for name in tools if (probe := PROFILES[name].probe) is not None} == tools


# npu-smi

TABLES = {
    "910b-four-cards": ("0000:c1:00.0", "0000:01:00.0", "0000:c2:00.0", "0000:02:00.0"),
    "310p-two-chips-per-card": ("0000:01:00.0", "0000:01:00.0", "0000:81:00.0", "0000:81:00.0"),
    "310p-old-without-processes": ("0000:00:07.0",),
    "310-four-chips-on-a-card": ("0000:05:00.0", "0000:06:00.0", "0000:07:00.0", "0000:08:00.0"),
    "910_93-two-chips-per-npu": ("0000:9d:00.0", "0000:9f:00.0", "0000:99:00.0", "0000:9b:00.0"),
}
SEVERAL = [name for name, chips in TABLES.items() if len(set(chips)) > 1]
NO_CARD = "There is no NPU card on this server.\n"
UNLOADED = "DrvMngGetConsoleLogLevel failed. (ret=4)\ndcmi module initialize failed. ret is -8005\n"
BUSY = "dcmi model initialized failed, because the device is used. ret is -8020\n"


def golden(name: str) -> str:
    return (GOLDEN / "npu-smi" / f"{name}.txt").read_text()


def table(out: str, present: Bus = ()) -> ProbeResult:
    return parse("npu-smi", 0, out, out.strip().rpartition("\n")[2] or "no output", present)


def functions(name: str) -> Bus:
    return tuple(sorted(set(TABLES[name])))


@pytest.mark.parametrize("name", TABLES)
def test_every_chip_of_a_table_is_seen_with_its_address_and_name(name: str) -> None:
    result = table(golden(name), functions(name))
    assert tuple(device.address for device in result.devices) == TABLES[name]
    assert (result.health, result.reason) == (GOOD, f"{len(TABLES[name])} device(s) OK")
    names = [device.name for device in result.devices]
    assert len(set(names)) == len(names)
    if name == "310p-two-chips-per-card":
        assert names == ["npu 1 chip 0", "npu 1 chip 1", "npu 32768 chip 0", "npu 32768 chip 1"]


@pytest.mark.parametrize("name", TABLES)
def test_the_health_column_decides(name: str) -> None:
    for word in ("Warning", "Alarm", "Critical", "UNKNOWN", "critical"):
        health, lines = GOOD if word == "Warning" else BAD, golden(name).splitlines(keepends=True)
        last = max(number for number, line in enumerate(lines) if "| OK " in line)
        lines[last] = lines[last].replace("| OK" + " " * (len(word) - 2), f"| {word}")
        result = table("".join(lines), functions(name))
        assert (result.devices[-1].health, result.devices[-1].reason) == (health, word)
        assert {device.health for device in result.devices[:-1]} <= {GOOD}
        check(result, health, f"{result.devices[-1].name} is {word}" if health is BAD else "device(s)")


def test_a_word_of_another_locale_is_unknown_and_the_chip_still_counts() -> None:
    changed = golden("910b-four-cards").replace("| OK            |", "| 正常          |", 1)
    result = table(changed, functions("910b-four-cards"))
    check(result, UNCLEAR, "npu 0 chip 0 is 正常")
    assert [device.health for device in result.devices] == [UNCLEAR] + [GOOD] * 3


def test_locale_width_colour_frame_and_processes_do_not_matter() -> None:
    changes: tuple[Callable[[str], str], ...] = (
        lambda text: text.replace("NPU   Name ", "卡号  名称 ").replace("Health", "健康").replace("Process", "进程"),
        lambda text: text.replace("93.0", "93,0").replace("90.4", "90,4"),
        lambda text: text.replace(" " * 8, " "),
        lambda text: text.replace("|", "|  "),
        lambda text: text.replace("|", "│"),
        lambda text: text.replace("OK", "\x1b[1;32mOK\x1b[0m"),
        lambda text: "\n".join("    " + line for line in text.splitlines()),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text + "\n\n",
        lambda text: "a warning before the table\n" + text,
        lambda text: text.replace("python3  ", "Critical "),
    )
    for number, change in enumerate(changes):
        result = table(change(golden("910b-four-cards")), functions("910b-four-cards"))
        assert (result.health, len(result.devices)) == (GOOD, 4), (number, result)


@pytest.mark.parametrize("name", TABLES)
def test_half_a_table_is_unknown_wherever_it_breaks_off_unless_a_chip_in_it_is_bad(name: str) -> None:
    whole = golden(name)
    last_chip = whole.index(TABLES[name][-1][5:].upper())
    for cut in range(whole.index("\n", last_chip)):
        # After a border only the PCI bus shows that there should be more.
        ends_with_border = whole[:cut].rstrip("\n").endswith("+") and "+\n" in whole[cut - 2 : cut + 1]
        allowed = {UNCLEAR, BAD} if ends_with_border else {UNCLEAR}
        assert table(whole[:cut], functions(name)).health in allowed, whole[:cut]
    bad = whole.replace("| OK      ", "| Critical", 1)
    end_of_chip = bad.index("\n", bad.index("\n", bad.index("Critical")) + 1)
    assert table(bad[: end_of_chip - 80]).health is UNCLEAR
    assert table(bad[: end_of_chip + 40]).health is BAD


@pytest.mark.parametrize("name", TABLES)
def test_a_function_that_is_not_in_the_table_is_missing_and_chips_without_a_bus_id_are_not_counted(name: str) -> None:
    more = (*functions(name), "0000:f1:00.0")
    result = table(golden(name), more)
    check(result, BAD, f"{len(functions(name))} of {len(more)} PCI devices seen; 0000:f1:00.0 missing")
    assert result.devices[-1].address == "0000:f1:00.0"
    blind = re.sub(r"[0-9A-F]{4}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]", "NA          ", golden(name))
    check(table(blind, functions(name)), UNCLEAR, "no device has a PCI address that can be read")


def test_a_function_is_missing_though_there_are_as_many_chips_as_functions() -> None:
    one_card = golden("310p-old-without-processes")
    two_chips = one_card + one_card[one_card.index("| 7 ") :].replace("| 0       0 ", "| 1       1 ")
    assert table(two_chips, ("0000:00:07.0",)).health is GOOD
    assert "0000:00:08.0 missing" in table(two_chips, ("0000:00:07.0", "0000:00:08.0")).reason


def test_a_failure_of_npu_smi_is_read_by_its_code() -> None:
    for status, out, health, reason in (
        *((187, out, BAD, "-8005: not initialised") for out in (UNLOADED, "")),
        *(
            *((186, "", BAD, "-8006: timeout"), (184, "", BAD, "-8008: no device")),
            (180, "", BAD, "-8012: device not ready"),
        ),
        *((status, out, UNCLEAR, "-8020: device in use") for status, out in ((172, BUSY), (172, ""), (1, BUSY))),
        *((193, "", UNCLEAR, "-8255: not supported"), (190, "", UNCLEAR, "-8002: no permission")),
        (179, "", UNCLEAR, "-8013: not supported in this container"),
        (175, "", UNCLEAR, "-8017: firmware is being upgraded"),
        (183, "call failed. ret is -8009\n", BAD, "exit status 183: call failed. ret is -8009"),
        *((1, "", BAD, "exit status 1"), (-11, "", BAD, "exit status -11"), (0, "", UNCLEAR, UNEXPECTED)),
        *((0, NO_CARD, BAD, "sees no device"), (0, "\x00\xff\ufffd" * 1000, UNCLEAR, UNEXPECTED)),
    ):
        for parser in ("npu-smi", "npu-smi-list"):
            check(parse(parser, status, out, out.strip() or "no output"), health, reason)
    codes = {one.status: int(one.message.removeprefix("ret is ")) for one in NPU_SMI.answers if one.status}
    assert {status: code & 0xFF for status, code in codes.items()} == {one: one for one in codes}, "it is the low byte"


LISTED = golden("list-two-cards")


def test_the_list_of_npu_smi_has_the_cards_that_answer() -> None:
    empty_card = LISTED.replace("Chip Count                     : 2", "Chip Count : 0")
    three_cards = LISTED.replace("Total Count                    : 2", "Total Count : 3")
    for out, present, health, reason in (
        *((LISTED, 2, GOOD, "3 device(s) listed"), (LISTED, 4, BAD, "3 of 4 PCI devices seen")),
        (LISTED, 3, UNCLEAR, "3 chip(s) on 2 card(s); unknown if on all 3 PCI devices"),
        *((LISTED.replace("32768", "1"), 2, UNCLEAR, UNEXPECTED), (empty_card, 1, BAD, "npu 32768 is without a chip")),
        *((three_cards, 1, UNCLEAR, UNEXPECTED), (LISTED[: LISTED.rindex("Chip")], 1, UNCLEAR, UNEXPECTED)),
        ("Total Count : 0\n", 1, BAD, "sees no device"),
    ):
        bus = tuple(f"0000:0{number}:00.0" for number in range(present))
        check(parse("npu-smi-list", 0, out, "", bus), health, reason)


@pytest.mark.parametrize("name", SEVERAL)
def test_no_garbled_table_is_healthy_with_a_chip_less(name: str) -> None:
    lines = golden(name).splitlines()
    missing = TABLES[name][-1][5:].upper()
    rest = [line for line in lines if missing not in line]
    chip = lines.index(next(line for line in lines if missing in line))
    garbled = [(*lines[: chip - 1], *rows, lines[2]) for rows in itertools.product(rest, repeat=2)]
    if name == "310p-two-chips-per-card":  # found at random
        garbled.append(tuple(lines[number] for number in (14, 0, 1, 9, 21, 12, 7, 2)))
    for text in garbled:
        assert table("\n".join(text), functions(name)).health is not GOOD, text


ROW = "| 1       310P3                 | {word:<15} | NA           45                0     / 0             |\n"
NO_BUS_ID = "| 1       1   | NA   | 0   1511 / 43693   |\n"


def test_a_chip_without_a_bus_id_among_chips_with_one_is_no_chip() -> None:
    lines = golden("310p-two-chips-per-card").splitlines(keepends=True)
    for word, health in (("OK", UNCLEAR), ("Critical", BAD)):
        text = "".join((*lines[:12], ROW.format(word=word), NO_BUS_ID, *lines[17:]))
        result = table(text, functions("310p-two-chips-per-card"))
        assert result.health is health
        assert GOOD not in {device.health for device in result.devices if not device.address}


# the table of answers in docs/profiles.md

ROWS = re.compile(r"^\| (\w+) \| (\w+) \| (?:(\d+): `(.*)`|no answer) \| [^|]* \|$", re.MULTILINE)
DOCUMENTED = ROWS.findall((Path(__file__).parents[3] / "docs/profiles.md").read_text())
LOST = "Unable to determine the device handle for GPU0000:C1:00.0: GPU is lost.  Reboot the system to recover this GPU"
WARBOY = (
    '[{"index":"0","arch":"warboy","device":"npu0","liveness":"alive","cores":[{"idx":0,"status":"available"}],'
    '"pe_utilizations":[{"pe_core":0,"utilization":0.0}]}]'
)
P100A = (
    '{"device_info": [{"board_info": {"bus_id": "0000:c1:00.0", "board_type": "p100a", "dram_status": false}, '
    '"telemetry": {"heartbeat": "12"}}]}'
)
# AlexeyAB/darknet#86; lablup/all-smi, readers/furiosa.rs; tenstorrent/tt-smi#223, before firmware 19.7
MORE = [("nvidia", "lost", "15", LOST), ("furiosa", "healthy", "0", WARBOY), ("tenstorrent", "healthy", "0", P100A)]
KINDS = {"healthy": GOOD, "remark": GOOD, "sick": BAD, "lost": BAD, "slow": BAD, "unknown": UNCLEAR}


@pytest.mark.parametrize(("vendor", "kind", "status", "sample"), [*DOCUMENTED, *MORE])
def test_an_answer_means_what_the_documentation_says(vendor: str, kind: str, status: str, sample: str) -> None:
    probe = PROFILES[vendor].probe
    assert probe is not None
    out = "".join(f"{line}\n" for line in sample.replace("¦", "|").split(" ⏎ "))
    answer = (int(status), out, out.splitlines()[-1]) if status else (TIMED_OUT, "", "timed out after 20 s")
    result = parsers.parse(probe, *answer, BOTH[:1])
    assert (result.health, result.is_slow) == (KINDS[kind], kind == "slow"), result


def test_every_vendor_has_each_kind_of_answer_in_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs/profiles.md").read_text()
    named = re.findall(r"^\| (\w+) \| ([\w, ]+) \| (?:\d+: `|no )", text, re.MULTILINE)
    for vendor in PROFILES:
        assert {kind for name, kinds in named if name == vendor for kind in kinds.split(", ")} == {*KINDS}, vendor
