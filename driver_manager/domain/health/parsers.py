"""Parsers of the vendors' tools: exit status and output in, one verdict per device out. `PARSERS` lists them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from driver_manager.domain.host import NO_TOOL, TIMED_OUT, DeviceVerdict, Health, ProbeResult, loader_failure
from driver_manager.domain.text import writable

# From the verdicts on devices to one result, compared with the devices on the PCI bus.

Parser = Callable[[int, str, str, tuple[str, ...]], ProbeResult]
"""From exit status, output, the last line for a reason, and the addresses of the PCI functions to serve."""

JsonReader = Callable[[Any, tuple[str, ...]], ProbeResult]
"""From the decoded JSON and the addresses. May raise ValueError, KeyError or TypeError for an unexpected form."""

ENDED_FROM_OUTSIDE = (-9, -15)
"""Statuses of a tool that was killed (by an administrator, or for lack of memory): no verdict on the devices."""

_ADDRESS = re.compile(r"(?:([0-9A-Fa-f]{4,8}):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")


def pci_address(text: str) -> str:
    """The PCI address in `text` as sysfs writes it, "" for none. Tools pad the domain, or leave it out."""
    found = _ADDRESS.search(text)
    if found is None:
        return ""
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}.{function}"


def unknown(reason: str) -> ProbeResult:
    return ProbeResult(Health.UNKNOWN, reason)


def unhealthy(reason: str) -> ProbeResult:
    """A failure without verdicts on single devices."""
    return ProbeResult(Health.UNHEALTHY, reason)


def failure(tool: str, status: int, last_line: str) -> ProbeResult | None:
    """The result of a tool whose exit status is not 0; None for 0."""
    if status in ENDED_FROM_OUTSIDE:
        return unknown(f"{tool} was killed from outside: {last_line}")
    return unhealthy(f"{tool} failed with exit status {status}: {last_line}") if status else None


def json_parser(tool: str, read: JsonReader) -> Parser:
    """The parser of a tool that prints JSON and exits with 0 unless it fails."""

    def parser(status: int, out: str, last_line: str, present: tuple[str, ...]) -> ProbeResult:
        failed = failure(tool, status, last_line)
        if failed is not None:
            return failed
        try:
            return read(json.loads(out), present)
        except (ValueError, KeyError, TypeError, RecursionError):
            return unknown(f"{tool} printed unexpected output")

    return parser


def whole(devices: tuple[DeviceVerdict, ...], present: tuple[str, ...]) -> ProbeResult:
    """The result of `devices`; `present` are the PCI functions that the driver should serve.

    Each must be among the devices by its address, as a function may hold two (Ascend 310P). A device without one counts
    only if it is bad. If none has an address, the result is unknown unless a device is bad.
    """
    seen = {device.address for device in devices} - {""}
    if devices and not seen:
        result = _judged(devices, "")
        unclear = "no device has a PCI address that can be read"
        return replace(result, health=Health.UNKNOWN, reason=unclear) if result.health is Health.HEALTHY else result
    devices = tuple(one for one in devices if one.address or one.health is not Health.HEALTHY)
    absent = tuple(address for address in present if address not in seen)
    lacking = _lacking(len(absent), present) + "".join(f"; {address} missing" for address in absent)
    return _judged((*devices, *(_missing(address) for address in absent)), lacking)


def counted(devices: tuple[DeviceVerdict, ...], present: tuple[str, ...]) -> ProbeResult:
    """The result of `devices` without addresses: their number is compared with that of the PCI functions."""
    return _judged(devices, _lacking(max(0, len(present) - len(devices)), present))


def _lacking(count: int, present: tuple[str, ...]) -> str:
    return f"{len(present) - count} of {len(present)} PCI devices seen" if count else ""


def _judged(devices: tuple[DeviceVerdict, ...], lacking: str) -> ProbeResult:
    bad = [f"{device.name} is {device.reason}" for device in devices if device.health is Health.UNHEALTHY]
    if bad or lacking:
        return ProbeResult(Health.UNHEALTHY, lacking or "; ".join(bad), devices)
    unclear = [f"{device.name} is {device.reason}" for device in devices if device.health is Health.UNKNOWN]
    if unclear:
        return ProbeResult(Health.UNKNOWN, "; ".join(unclear), devices)
    return ProbeResult(Health.HEALTHY, f"{len(devices)} device(s) {_words(devices)}", devices)


def partial(tool: str, devices: tuple[DeviceVerdict, ...]) -> ProbeResult:
    """The result of incomplete output: unhealthy if a device in it is bad, else unknown."""
    result = whole(devices, ())
    return result if result.health is Health.UNHEALTHY else unknown(f"{tool} printed unexpected output")


def _missing(address: str) -> DeviceVerdict:
    return DeviceVerdict(address, Health.UNHEALTHY, "missing", address)


def _words(devices: tuple[DeviceVerdict, ...]) -> str:
    return ", ".join(dict.fromkeys(device.reason for device in devices))


# AMD: `amd-smi list --json`, the GPUs that the loaded driver serves, without their health.
#
# Source of the form: ROCm/amdsmi (amdsmi_cli), and its documentation of `amd-smi list`.


def amd_smi_listing(bodies: Any, present: tuple[str, ...]) -> ProbeResult:
    """`amd-smi list --json`. A partitioned GPU is listed once for each partition, with the same address.

    A GPU whose `kfd_id` is N/A takes no work: the kernel's compute driver lacks it, or the tool may not read it.
    """
    found = tuple(map(_amd_gpu, bodies))
    return whole(found, present) if found else unhealthy("amd-smi sees no device")


def _amd_gpu(body: dict[str, object]) -> DeviceVerdict:
    name, address = f"gpu {int(str(body['gpu']))}", pci_address(str(body["bdf"]))
    if body.get("kfd_id") == "N/A":
        return DeviceVerdict(name, Health.UNKNOWN, "without a kfd_id", address)
    return DeviceVerdict(name, Health.HEALTHY, "listed", address)


# Furiosa: `furiosa-smi status --format json`, whether each NPU is alive, and whether a process uses it.
#
# Source of the form: a public recording of furiosa-smi on RNGD cards; developer.furiosa.ai, Furiosa SMI CLI.


def furiosa_smi_status(bodies: Any, present: tuple[str, ...]) -> ProbeResult:
    """One entry per NPU, without PCI addresses. An NPU is busy if a process has one of its processing elements."""
    found = tuple(_furiosa_npu(body) for body in bodies)
    busy = tuple(
        writable(body["device"])
        for body in bodies
        if any(one["pe_occupancy"] is True for one in body.get("pe_utilizations") or ())
    )
    if len({npu.name for npu in found}) < len(found):
        return unknown("furiosa-smi printed an NPU twice")
    return replace(counted(found, present), busy=busy) if found else unhealthy("furiosa-smi sees no device")


def _furiosa_npu(body: dict[str, object]) -> DeviceVerdict:
    word = writable(body["liveness"])
    return DeviceVerdict(writable(body["device"]), Health.HEALTHY if word == "alive" else Health.UNHEALTHY, word)


# Intel Gaudi: `hl-smi -Q index,bus_id,name -f csv,noheader`, one line per device that answers.
#
# Source of the form: docs.habana.ai, System Management Interface Tool (hl-smi); public recordings of its CSV.


def hl_smi_query(status: int, out: str, last_line: str, present: tuple[str, ...]) -> ProbeResult:
    """The query's output. A device that the driver took down has no line; one without a name is bad."""
    failed = failure("hl-smi", status, last_line)
    if failed is not None:
        return failed
    rows, is_whole = _csv_rows(out, 3)
    devices = tuple(map(_hl_device, rows))
    if not is_whole:
        return partial("hl-smi", devices)
    return whole(devices, present) if devices else unhealthy("hl-smi sees no device")


def _csv_rows(out: str, fields: int) -> tuple[list[list[str]], bool]:
    """The rows that begin with an index and a PCI address and have at least `fields` fields; True if all do."""
    rows = [[field.strip() for field in line.split(",")] for line in out.splitlines() if line.strip()]
    complete = [row for row in rows if len(row) >= fields and row[0].isdecimal() and pci_address(row[1])]
    return complete, len(complete) == len(rows) and (not rows or out.endswith("\n"))


def _hl_device(row: list[str]) -> DeviceVerdict:
    is_known = row[2] not in ("", "N/A")
    health, word = (Health.HEALTHY, "listed") if is_known else (Health.UNHEALTHY, "without a name")
    return DeviceVerdict(writable(f"aip {row[0]}"), health, word, pci_address(row[1]))


# Huawei: the table of `npu-smi info`, the list of `npu-smi info -l`, and the codes of npu-smi's failures.
#
# The table differs by chip and version: widths, a second number in the chip's row (310P: Device, 910_93: Phy-ID),
# `---` or `===` between the chips of one card, a table of processes below. So it is read by its shape and not by its
# headings: a row `<number> <name> | <health> | …`, and directly below it a row `<number> [<number>] | <bus id> | …`.

NPU_SMI_WORDS = {
    "ok": Health.HEALTHY,
    "warning": Health.HEALTHY,
    "alarm": Health.UNHEALTHY,
    "critical": Health.UNHEALTHY,
    "unknown": Health.UNHEALTHY,
}
"""The health column. A warning is a minor alarm of a working chip; UNKNOWN is a chip that is gone or not started."""

NPU_SMI_CODES: dict[int, tuple[Health, str]] = {
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
"""DCMI return codes (dcmi_interface_api.h); any other code is a failure without a name.

A driver that was upgraded without a reboot also returns -8005; -8020 occurs with more than two or three clients.
"""

_STATUSES = {code & 0xFF: code for code in NPU_SMI_CODES}
"""npu-smi ends with the low byte of the code."""

_PRINTED_CODE = re.compile(r"ret is (-8\d{3})\b")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BARS = str.maketrans({"│": "|", "┃": "|", "║": "|"})
_CARD = re.compile(r"(\d+)\s+(\S.*)")
_CHIP = re.compile(r"(\d+)(?:\s+(?:\d+|-|NA))?")
_NO_CARD = "There is no NPU card"
_FIELD = re.compile(r"\s*(Total Count|NPU ID|Chip Count)\s*:\s*(\d{1,9})\s*", re.ASCII)
MOST_CHIPS = 64
"""On one card, where the largest has four. A larger number is invalid, and would make a list of that length."""

Row = tuple[str, ...] | None
"""The cells of a table's line; None for a border or another line."""


def npu_smi_table(status: int, out: str, last_line: str, present: tuple[str, ...]) -> ProbeResult:
    """`npu-smi info`."""
    failed = _npu_smi_failure(status, out, last_line)
    if failed is not None:
        return failed
    text = _COLOUR.sub("", out).translate(_BARS)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    chips, is_broken = _chips([_cells(line) for line in lines])
    lacks_address = len({bool(chip.address) for chip in chips}) > 1
    if is_broken or lacks_address or not chips or not _is_closed(lines):
        return partial("npu-smi", chips)
    return whole(chips, present)


def npu_smi_listing(status: int, out: str, last_line: str, present: tuple[str, ...]) -> ProbeResult:
    """`npu-smi info -l`: the cards that answer and their numbers of chips, without their health.

    It has no bus ids, and a PCI function has one or two chips: the list is complete only if it has a card for each one.
    """
    failed = _npu_smi_failure(status, out, last_line)
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


def _npu_smi_failure(status: int, out: str, last_line: str) -> ProbeResult | None:
    """The result of a failed npu-smi: by the code that it prints, else by its exit status. None if it did not fail."""
    if status == 0:
        return unhealthy("npu-smi sees no device") if _NO_CARD in out else None
    if status in ENDED_FROM_OUTSIDE:
        return unknown(f"npu-smi was killed from outside: {last_line}")
    named = _PRINTED_CODE.findall(out)
    code = int(named[-1]) if named else _STATUSES.get(status)
    if code is None:
        return unhealthy(f"npu-smi failed with exit status {status}: {last_line}")
    health, meaning = NPU_SMI_CODES.get(code, (Health.UNHEALTHY, last_line))
    return ProbeResult(health, f"npu-smi failed with {code}: {meaning}")


def _is_closed(lines: list[str]) -> bool:
    """True if the last line is a border, as wide as the first one."""
    borders = [line for line in lines if line.startswith("+") and line.endswith("+")]
    return bool(borders) and lines[-1] == borders[-1] and len(borders[-1]) >= len(borders[0])


def _cells(line: str) -> Row:
    if not (line.startswith("|") and line.endswith("|") and len(line) > 1):
        return None
    return tuple(cell.strip() for cell in line[1:-1].split("|"))


def _chips(rows: list[Row]) -> tuple[tuple[DeviceVerdict, ...], bool]:
    """The chips in a table's rows, and whether one of their two rows is missing."""
    chips: list[DeviceVerdict] = []
    is_broken = False
    left = [*rows, None]
    while len(left) > 1:
        chip = _npu_chip(left[0], left[1])
        if chip is not None:
            chips.append(chip)
        else:
            is_broken = is_broken or _is_half(left[0])
        del left[: 1 if chip is None else 2]
    return tuple(chips), is_broken


def _npu_chip(upper: Row, lower: Row) -> DeviceVerdict | None:
    """The chip in two rows, None if these are no rows of a chip."""
    if upper is None or lower is None or min(len(upper), len(lower)) < 3:
        return None
    card, chip, word = _CARD.fullmatch(upper[0]), _CHIP.fullmatch(lower[0]), upper[1]
    address = pci_address(lower[1])
    is_process = lower[1].isdecimal()  # in the table of processes, a process id is where a chip has its bus id
    if card is None or chip is None or is_process or not (address or word.lower() in NPU_SMI_WORDS):
        return None
    name = f"npu {card.group(1)} chip {chip.group(1)}"
    return DeviceVerdict(name, NPU_SMI_WORDS.get(word.lower(), Health.UNKNOWN), word or "without a state", address)


def _is_half(row: Row) -> bool:
    """True if this row without its other one belongs to a chip."""
    if row is None or len(row) < 2:
        return False
    is_upper = _CARD.fullmatch(row[0]) is not None and row[1].lower() in NPU_SMI_WORDS
    return is_upper or (_CHIP.fullmatch(row[0]) is not None and bool(pci_address(row[1])))


# NVIDIA: `nvidia-smi --query-gpu=index,pci.bus_id,… --format=csv,noheader`, one line per GPU.

NO_VERDICT = (2, 3, 4, 12, 13)
"""nvidia-smi(1), RETURN VALUE: bad argument, not available, no permission, library not found, function not in it."""

_REMARK = re.compile(r"\[([^\]]*)\]|(ERR!)")
_HARMLESS = {"n/a", "not supported", "insufficient permissions"}


def nvidia_smi_query(status: int, out: str, last_line: str, present: tuple[str, ...]) -> ProbeResult:
    """The query's output. A GPU is bad if a field has a remark such as `[GPU requires reset]` or `ERR!`."""
    failed = failure("nvidia-smi", status, last_line)
    if failed is not None:
        return unknown(failed.reason) if status in NO_VERDICT else failed
    if "No devices were found" in out:
        return unhealthy("nvidia-smi sees no device")
    rows, is_whole = _csv_rows(out, 2)
    gpus = tuple(map(_nvidia_gpu, rows))
    return whole(gpus, present) if gpus and is_whole else partial("nvidia-smi", gpus)


def _nvidia_gpu(row: list[str]) -> DeviceVerdict:
    remarks = [first or second for first, second in _REMARK.findall(", ".join(row[2:]))]
    bad = [remark for remark in remarks if remark.lower() not in _HARMLESS]
    health = Health.UNHEALTHY if bad else Health.HEALTHY
    return DeviceVerdict(f"gpu {row[0]}", health, "; ".join(bad) or "without errors", pci_address(row[1]))


# Rebellions: `rbln-smi -j`, one status per device; `normal` is healthy.

_NAMED_BY = ("npu", "name", "uuid", "device", "pci")
"""The identity of a device; a version may leave out some of these."""


def rbln_smi(status: int, out: str, last_line: str, present: tuple[str, ...]) -> ProbeResult:
    """`rbln-smi -j`, whose last line names the failure."""
    if status and status not in ENDED_FROM_OUTSIDE:
        return unhealthy(last_line)
    return json_parser("rbln-smi", rbln_smi_devices)(status, out, last_line, present)


def rbln_smi_devices(body: Any, present: tuple[str, ...]) -> ProbeResult:
    """The devices, with PCI addresses if this version prints them."""
    found = tuple(map(_rbln_device, body["devices"]))
    names = {tuple(str(one.get(key)) for key in _NAMED_BY) for one in body["devices"]}
    prints_addresses = any("pci" in one for one in body["devices"])
    count = len(body.get("contexts") or ())
    if len(names) < len(found):
        return unknown("rbln-smi printed a device twice")
    busy = (f"{count} context(s)",) if count else ()
    if not found:
        return unhealthy("rbln-smi sees no device")
    return replace(whole(found, present) if prints_addresses else counted(found, present), busy=busy)


def _rbln_device(body: dict[str, object]) -> DeviceVerdict:
    status = writable(body["status"])
    health = Health.HEALTHY if status == "normal" else Health.UNHEALTHY
    return DeviceVerdict(writable(body["name"]), health, status, pci_address(str(body.get("pci", ""))))


# Tenstorrent: `tt-smi -s`, a snapshot of all chips as JSON.
#
# Source of the form: tenstorrent/tt-smi, and public recordings of its snapshots.


def tt_smi_snapshot(body: Any, present: tuple[str, ...]) -> ProbeResult:
    """The chips on the PCI bus; a chip that is reached through another one has no address, and is left out."""
    on_bus = tuple(chip for chip in map(_tt_chip, body["device_info"]) if chip.address)
    return whole(on_bus, present) if on_bus else unhealthy("tt-smi sees no device")


def _tt_chip(body: dict[str, Any]) -> DeviceVerdict:
    board, telemetry = body["board_info"], body["telemetry"]
    address = pci_address(str(board["bus_id"]))
    health, word = Health.HEALTHY, "answering"
    if board.get("dram_status") is False:
        health, word = Health.UNHEALTHY, "without its DRAM"
    elif not isinstance(telemetry, dict) or not telemetry:
        health, word = Health.UNHEALTHY, "without telemetry"
    return DeviceVerdict(writable(f"{board['board_type']} {address}"), health, word, address)


# The table of parsers.

LAST_LINE_CHARS = 300


def parse(  # noqa: PLR0913  # the whole result of a tool's run
    parser: str, status: int, out: str, last_line: str, present: tuple[str, ...] = (), *, err: str = ""
) -> ProbeResult:
    """The result in a tool's exit `status` and output; `last_line` is the last line that it printed, for the reason.

    `present` are the PCI addresses to serve. `err`, standard error, shows a tool that could not be loaded: no verdict.
    """
    if status == TIMED_OUT:
        return unhealthy(last_line)
    unloadable = loader_failure(status, err)
    if unloadable:
        reason = f"the tool cannot be loaded with its libraries: {unloadable[:LAST_LINE_CHARS]}"
        return ProbeResult(Health.UNKNOWN, reason, is_tool_broken=True)
    if status in NO_TOOL:
        return ProbeResult(Health.UNKNOWN, last_line, is_tool_broken=True)
    return PARSERS[parser](status, out, last_line, present)


def _exit_status(status: int, _out: str, last_line: str, _present: tuple[str, ...]) -> ProbeResult:
    return unhealthy(last_line) if status else ProbeResult(Health.HEALTHY, "exit status 0")


PARSERS: dict[str, Parser] = {
    "exit-status": _exit_status,
    "amd-smi-list": json_parser("amd-smi", amd_smi_listing),
    "furiosa-smi": json_parser("furiosa-smi", furiosa_smi_status),
    "hl-smi": hl_smi_query,
    "npu-smi": npu_smi_table,
    "npu-smi-list": npu_smi_listing,
    "nvidia-smi": nvidia_smi_query,
    "rbln-smi": rbln_smi,
    "tt-smi": json_parser("tt-smi", tt_smi_snapshot),
}
"""By the name in a profile's `probe.parser`."""

SHOWS_USE = frozenset({"furiosa-smi", "rbln-smi"})
"""Parsers whose result has the devices that are busy."""
