"""Huawei's `npu-smi`: the table of `npu-smi info`, the list of `npu-smi info -l`, and what it says when it fails. Pure.

The table differs by chip and version: widths, a second number in the chip's row (310P: Device, 910_93: Phy-ID), chips
of one card apart by `---` or `===`, a table of processes below. So it is read by its shape, not by its headings: a
row `<number> <name> | <health> | …`, right below it a row `<number> [<number>] | <bus id> | …`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from driver_manager.domain.health.parsers.verdicts import (
    ENDED_FROM_OUTSIDE,
    counted,
    partial,
    pci_address,
    unhealthy,
    unknown,
    whole,
)
from driver_manager.domain.probe_result import DeviceVerdict, Health, ProbeResult

WORDS = {
    "ok": Health.HEALTHY,
    "warning": Health.HEALTHY,
    "alarm": Health.UNHEALTHY,
    "critical": Health.UNHEALTHY,
    "unknown": Health.UNHEALTHY,
}
"""The health column. A warning is a minor alarm of a chip that works; UNKNOWN is a chip that is gone or not started."""

CODES: dict[int, tuple[Health, str]] = {
    -8002: (Health.UNKNOWN, "no permission"),
    -8005: (Health.UNHEALTHY, "not initialised"),
    -8006: (Health.UNHEALTHY, "timeout of the device"),
    -8008: (Health.UNHEALTHY, "no device"),
    -8012: (Health.UNHEALTHY, "device not ready"),
    -8013: (Health.UNKNOWN, "not supported in this container"),
    -8017: (Health.UNKNOWN, "firmware is being upgraded"),
    -8020: (Health.UNKNOWN, "device in use by another client"),
    -8255: (Health.UNKNOWN, "not supported"),
}
"""DCMI return codes (dcmi_interface_api.h); what is not here is a failure without a name.

-8005 is also what a driver says that was upgraded without a reboot; -8020 is seen with more than two or three clients.
"""

_STATUSES = {code & 0xFF: code for code in CODES}
"""npu-smi ends with the low byte of the code."""

_SAID_CODE = re.compile(r"ret is (-8\d{3})\b")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BARS = str.maketrans({"│": "|", "┃": "|", "║": "|"})
_CARD = re.compile(r"(\d+)\s+(\S.*)")
_CHIP = re.compile(r"(\d+)(?:\s+(?:\d+|-|NA))?")
_NO_CARD = "There is no NPU card"
_FIELD = re.compile(r"\s*(Total Count|NPU ID|Chip Count)\s*:\s*(\d{1,9})\s*", re.ASCII)
MOST_CHIPS = 64
"""Of one card; there are four on the largest. More is garbage, and would be a list of that length."""

Row = tuple[str, ...] | None
"""Cells of a line of a table; None for a border or another line."""


def table(status: int, out: str, last_line: str, present: tuple[str, ...]) -> ProbeResult:
    """`npu-smi info`."""
    failed = _failure(status, out, last_line)
    if failed is not None:
        return failed
    text = _COLOUR.sub("", out).translate(_BARS)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    chips, is_broken = _chips([_cells(line) for line in lines])
    lacks_address = len({bool(chip.address) for chip in chips}) > 1
    if is_broken or lacks_address or not chips or not _is_closed(lines):
        return partial("npu-smi", chips)
    return whole(chips, present)


def listing(status: int, out: str, last_line: str, present: tuple[str, ...]) -> ProbeResult:
    """`npu-smi info -l`: which cards answer, with how many chips. It does not tell their health.

    It tells no bus ids either, and one PCI function has one or two chips: only as many cards as functions are all.
    """
    failed = _failure(status, out, last_line)
    if failed is not None:
        return failed
    fields = [(found.group(1), int(found.group(2))) for found in map(_FIELD.fullmatch, out.splitlines()) if found]
    totals = [value for name, value in fields if name == "Total Count"]
    cards = [(name, value) for name, value in fields if name != "Total Count"]
    names, counts = [name for name, _ in cards], [value for _, value in cards]
    is_list = names == ["NPU ID", "Chip Count"] * (len(names) // 2) and totals == [len(names) // 2]
    is_list = is_list and len(set(counts[::2])) == len(counts[::2])
    if not is_list or any(chips > MOST_CHIPS for chips in counts[1::2]):
        return partial("npu-smi", ())
    devices: list[DeviceVerdict] = []
    for card, chips in zip(counts[::2], counts[1::2], strict=True):
        if not chips:
            devices.append(DeviceVerdict(f"npu {card}", Health.UNHEALTHY, "without a chip"))
        devices += [DeviceVerdict(f"npu {card} chip {chip}", Health.HEALTHY, "listed") for chip in range(chips)]
    if not devices:
        return unhealthy("npu-smi sees no device")
    result = counted(tuple(devices), present)
    if result.health is Health.HEALTHY and len(names) // 2 < len(present):
        lists = f"npu-smi lists {len(devices)} chip(s) on {len(names) // 2} card(s)"
        return replace(result, health=Health.UNKNOWN, reason=f"{lists}; unknown if on all {len(present)} PCI devices")
    return result


def _failure(status: int, out: str, last_line: str) -> ProbeResult | None:
    """The sample where npu-smi failed: by the code it names, else by its exit status. None where it did not."""
    if status == 0:
        return unhealthy("npu-smi sees no device") if _NO_CARD in out else None
    if status in ENDED_FROM_OUTSIDE:
        return unknown(f"npu-smi was killed from outside: {last_line}")
    named = _SAID_CODE.findall(out)
    code = int(named[-1]) if named else _STATUSES.get(status)
    if code is None:
        return unhealthy(f"npu-smi failed with exit status {status}: {last_line}")
    health, meaning = CODES.get(code, (Health.UNHEALTHY, last_line))
    return ProbeResult(health, f"npu-smi failed with {code}: {meaning}")


def _is_closed(lines: list[str]) -> bool:
    """Whether the last line is a border, as wide as the first one."""
    borders = [line for line in lines if line.startswith("+") and line.endswith("+")]
    return bool(borders) and lines[-1] == borders[-1] and len(borders[-1]) >= len(borders[0])


def _cells(line: str) -> Row:
    if not (line.startswith("|") and line.endswith("|") and len(line) > 1):
        return None
    return tuple(cell.strip() for cell in line[1:-1].split("|"))


def _chips(rows: list[Row]) -> tuple[tuple[DeviceVerdict, ...], bool]:
    """The chips in a table's rows, and whether a row of a chip lacks its other half."""
    chips: list[DeviceVerdict] = []
    is_broken = False
    number = 0
    while number < len(rows):
        upper, lower = rows[number], rows[number + 1] if number + 1 < len(rows) else None
        chip = _chip(upper, lower)
        if chip is not None:
            chips.append(chip)
            number += 2
            continue
        is_broken = is_broken or _is_half(upper)
        number += 1
    return tuple(chips), is_broken


def _chip(upper: Row, lower: Row) -> DeviceVerdict | None:
    """The chip in two rows, None if they are none."""
    if upper is None or lower is None or min(len(upper), len(lower)) < 3:
        return None
    card, chip, word = _CARD.fullmatch(upper[0]), _CHIP.fullmatch(lower[0]), upper[1]
    address = pci_address(lower[1])
    is_process = lower[1].isdecimal()  # a row of the table of processes has a process id where a chip has its bus id
    if card is None or chip is None or is_process or not (address or word.lower() in WORDS):
        return None
    name = f"npu {card.group(1)} chip {chip.group(1)}"
    return DeviceVerdict(name, WORDS.get(word.lower(), Health.UNKNOWN), word or "without a state", address)


def _is_half(row: Row) -> bool:
    """Whether the row belongs to a chip: one that has its other half is not asked."""
    if row is None or len(row) < 2:
        return False
    is_upper = _CARD.fullmatch(row[0]) is not None and row[1].lower() in WORDS
    return is_upper or (_CHIP.fullmatch(row[0]) is not None and bool(pci_address(row[1])))
