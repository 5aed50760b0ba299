"""Parsers of the vendors' tools: what a tool printed, and its exit status, as one verdict per device.

A profile's `probe.answers` gives the meaning of exit statuses and messages. To add a tool, write a function of the type
`Parser`, or one that reads decoded JSON, and a line in `PARSERS`, the table at the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.domain.host import NO_TOOL, TIMED_OUT, DeviceVerdict, Health, ProbeResult, loader_failure
from driver_manager.domain.profile import ADDRESS, Meaning, Probe, ToolAnswer
from driver_manager.domain.text import shortened, writable

# From a tool's output to one result, compared with the devices on the PCI bus.

ENDED_FROM_OUTSIDE = (-9, -15)
"""Statuses of a tool that was killed (by an administrator, or for lack of memory): no verdict on the devices."""

LAST_LINE_CHARS = 300
REASON_CHARS = 200

MANY = 2**31
"""`Listing.unread` of output that was cut: any number of devices may be in the rest."""

_ADDRESS = re.compile(r"(?:([0-9A-Fa-f]{4,8}):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")


class Listing(Struct, frozen=True):
    """The devices in a tool's output. `unread` is the number of entries that cannot be read: each may be a device.

    `has_addresses`: the tool prints PCI addresses; if not, only the number of devices is compared. `busy` names the
    work on the devices. `doubt` is why the result is unknown though no device is bad or missing, "" if it is not.
    """

    devices: tuple[DeviceVerdict, ...] = ()
    unread: int = 0
    has_addresses: bool = True
    busy: tuple[str, ...] = ()
    doubt: str = ""


Parser = Callable[[str, int], Listing]
"""From the output and the number of PCI functions to serve. Raises one of `UNEXPECTED` for another form."""

UNEXPECTED = (ValueError, KeyError, TypeError, RecursionError)


def parse(  # noqa: PLR0913  # the whole result of a tool's run
    probe: Probe, status: int, out: str, last_line: str, present: tuple[str, ...] = (), *, err: str = ""
) -> ProbeResult:
    """The result in the exit `status` and output of the tool of `probe`; `last_line` is the last line that it printed.

    `present` are the PCI addresses of the devices that the driver should serve. `err` is the standard error, which
    shows that the tool could not be loaded with its libraries: that is no verdict on the devices.
    """
    failure = f"{probe.tool} failed with exit status {status}: {last_line}"
    answers = _Answers.of(probe, status, out, err)
    whole = answers.whole or ToolAnswer(Meaning.REMARK)
    unread = _not_run(probe, status, last_line, err)
    if unread is not None or whole.means in (Meaning.UNKNOWN, Meaning.SLOW):
        health = Health.UNKNOWN if whole.means is Meaning.UNKNOWN else Health.UNHEALTHY
        return unread or ProbeResult(health, whole.text or failure, is_slow=whole.means is Meaning.SLOW)
    try:
        listing = PARSERS[probe.parser](answers.rest, len(present))
    except UNEXPECTED:
        listing = Listing(unread=MANY)
    if whole.means is not Meaning.REMARK:
        devices = _with_answers(listing.devices, answers.by_device)
        reason = whole.text or "; ".join(_reasons(devices, Health.UNHEALTHY)) or failure
        return ProbeResult(Health.UNHEALTHY, reason, devices, busy=listing.busy, rest=Health.UNHEALTHY)
    if probe.parser == EXIT_STATUS:
        return ProbeResult(Health.HEALTHY, f"exit status {status}")
    result = judge(listing, present, answers.by_device, probe.tool)
    if answers.whole is None or result.health is Health.UNHEALTHY:
        return result
    if result.health is Health.UNKNOWN:  # a remark is one only beside devices that can be read
        return replace(result, health=Health.UNHEALTHY, reason=failure, rest=Health.UNHEALTHY)
    remark = "" if answers.by_device else f"; {whole.text or last_line}"
    return replace(result, reason=result.reason + remark)


def _not_run(probe: Probe, status: int, last_line: str, err: str) -> ProbeResult | None:
    """The result of a tool that did not run to its end, None if it did."""
    unloadable = loader_failure(status, err)
    if status == TIMED_OUT:
        return ProbeResult(Health.UNHEALTHY, last_line, is_slow=True)
    if unloadable:
        reason = f"the tool cannot be loaded with its libraries: {unloadable[:LAST_LINE_CHARS]}"
        return ProbeResult(Health.UNKNOWN, reason, is_tool_broken=True)
    if status in NO_TOOL:
        return ProbeResult(Health.UNKNOWN, last_line, is_tool_broken=True)
    if status in ENDED_FROM_OUTSIDE:
        return ProbeResult(Health.UNKNOWN, f"{probe.tool} was killed from outside: {last_line}")
    return None


class _Answers(Struct, frozen=True):
    """The answers of a tool that the profile knows, each with a text: the profile's or the tool's own.

    `by_device` has those about one device, by its address. `whole` is the answer about all devices, None if the tool
    reports no failure; `rest` is the output without the lines of the answers.
    """

    by_device: Mapping[str, ToolAnswer]
    whole: ToolAnswer | None
    rest: str

    @classmethod
    def of(cls, probe: Probe, status: int, out: str, err: str) -> _Answers:
        by_device: dict[str, ToolAnswer] = {}
        whole: ToolAnswer | None = None
        rest: list[str] = []
        for lines, others in ((out.splitlines(keepends=True), rest), (err.splitlines(), [])):
            for line in lines:
                answer, address = _message(probe.answers, line)
                if answer is None:
                    others.append(line)
                    continue
                answer = replace(answer, text=answer.text or shortened(line.strip(), REASON_CHARS))
                if address:
                    by_device[address] = answer
                else:
                    whole = answer
        if whole is None and status:
            whole = next((one for one in probe.answers if one.status == status), ToolAnswer(Meaning.SICK))
        return cls(by_device, whole, "".join(rest))


def _message(answers: Iterable[ToolAnswer], line: str) -> tuple[ToolAnswer | None, str]:
    """The answer whose message is in `line`, with the address of the device that it names, "" for none."""
    for answer in answers:
        before, placeholder, after = answer.message.partition(ADDRESS)
        at = line.find(before) if answer.message else -1
        if at < 0:
            continue
        if not placeholder:
            return answer, ""
        found = _ADDRESS.search(line, at + len(before))
        if found is not None and line.find(after, found.end()) >= 0:
            return answer, pci_address(found.group())
    return None, ""


def _with_answers(devices: tuple[DeviceVerdict, ...], by_device: Mapping[str, ToolAnswer]) -> tuple[DeviceVerdict, ...]:
    """The devices, each with the verdict of the answer about it; those that only an answer names come last."""
    known = {one.address for one in devices}
    unlisted = (DeviceVerdict(address, Health.UNKNOWN, "", address) for address in by_device if address not in known)
    return tuple(
        _answered(one, by_device[one.address]) if one.address in by_device else one for one in (*devices, *unlisted)
    )


def _answered(device: DeviceVerdict, answer: ToolAnswer) -> DeviceVerdict:
    if answer.means is Meaning.REMARK:
        is_good = device.health is Health.HEALTHY
        return replace(device, reason=answer.text) if is_good else device
    if answer.means is Meaning.UNKNOWN:
        return replace(device, health=Health.UNKNOWN, reason=answer.text)
    return replace(device, health=Health.UNHEALTHY, reason=answer.text, is_lost=answer.means is Meaning.LOST)


def judge(listing: Listing, present: tuple[str, ...], by_device: Mapping[str, ToolAnswer], tool: str) -> ProbeResult:
    """The result of `listing`; `present` are the PCI functions that the driver should serve.

    Each function must be among the devices, by its address: the number of devices does not show it, as a function may
    hold two (Ascend 310P). A device without an address stands for no function, but counts if it is bad. An entry that
    cannot be read may be one missing device, and no more than one.
    """
    devices = _with_answers(listing.devices, by_device)
    is_slow = any(one.means is Meaning.SLOW for one in by_device.values())
    doubt = listing.doubt
    if not devices and not listing.unread:
        return ProbeResult(Health.UNHEALTHY, f"{tool} sees no device", busy=listing.busy)
    seen = {device.address for device in devices} - {""}
    if listing.has_addresses and devices and not seen:
        doubt = doubt or ("no device has a PCI address that can be read" if present else "")
        missing: tuple[str, ...] = ()
        lacking = 0
    elif listing.has_addresses:
        devices = tuple(one for one in devices if one.address or one.health is not Health.HEALTHY)
        missing = tuple(address for address in present if address not in seen)
        lacking = len(missing)
    else:
        missing, lacking = (), max(0, len(present) - len(devices))
    if listing.unread and (lacking or not present):
        doubt = doubt or f"{tool} printed unexpected output"
        missing, lacking = (), lacking if lacking > listing.unread else 0
    devices = (*devices, *(_missing(address) for address in missing))
    rest = Health.UNHEALTHY if lacking > len(missing) else Health.UNKNOWN if doubt else Health.HEALTHY
    bad = _reasons(devices, Health.UNHEALTHY)
    unclear = _reasons(devices, Health.UNKNOWN)
    if lacking:
        reason = f"{len(present) - lacking} of {len(present)} PCI devices seen"
        reason += "".join(f"; {address} missing" for address in missing)
        return ProbeResult(Health.UNHEALTHY, reason, devices, busy=listing.busy, rest=rest)
    if bad:
        return ProbeResult(Health.UNHEALTHY, "; ".join(bad), devices, is_slow=is_slow, busy=listing.busy, rest=rest)
    if doubt or unclear:
        return ProbeResult(Health.UNKNOWN, doubt or "; ".join(unclear), devices, busy=listing.busy, rest=rest)
    words = ", ".join(dict.fromkeys(device.reason for device in devices))
    return ProbeResult(Health.HEALTHY, f"{len(devices)} device(s) {words}", devices, busy=listing.busy)


def _reasons(devices: Iterable[DeviceVerdict], health: Health) -> list[str]:
    return [f"{device.name} is {device.reason}" for device in devices if device.health is health]


def _missing(address: str) -> DeviceVerdict:
    return DeviceVerdict(address, Health.UNHEALTHY, "missing", address, is_lost=True)


def pci_address(text: str) -> str:
    """The PCI address in `text` as sysfs writes it, "" for none. Tools pad the domain, or leave it out."""
    found = _ADDRESS.search(text)
    if found is None:
        return ""
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}.{function}"


MAX_JSON_STARTS = 20


def _json(read: Callable[[Any], Listing]) -> Parser:
    """The parser of a tool that prints one JSON value, perhaps after lines of a log."""

    def parser(out: str, _count: int) -> Listing:
        starts = (found.end() - 1 for found in re.finditer(r"^\s*[\[{]", out, re.MULTILINE))
        for start in islice(starts, MAX_JSON_STARTS):
            try:
                return read(json.JSONDecoder().raw_decode(out, start)[0])
            except UNEXPECTED:
                continue
        raise ValueError("no JSON of the expected form")

    return parser


# AMD: `amd-smi list --json`, the GPUs that the loaded driver serves, without their health.
#
# Source of the form: ROCm/amdsmi (amdsmi_cli), and its documentation of `amd-smi list`.


def amd_smi_listing(bodies: Any) -> Listing:
    """`amd-smi list --json`. A partitioned GPU is listed once for each partition, with the same address."""
    return Listing(tuple(map(_amd_gpu, bodies)))


def _amd_gpu(body: dict[str, object]) -> DeviceVerdict:
    name, address = f"gpu {int(str(body['gpu']))}", pci_address(str(body["bdf"]))
    if body.get("kfd_id") == "N/A":  # the kernel's compute driver lacks it, so it takes no work
        return DeviceVerdict(name, Health.UNHEALTHY, "without a kfd_id", address)
    return DeviceVerdict(name, Health.HEALTHY, "listed", address)


# Furiosa: `furiosa-smi status --format json`, whether each NPU is alive, and whether a process uses it.
#
# Source of the form: a public recording of furiosa-smi on RNGD cards; developer.furiosa.ai, Furiosa SMI CLI. Warboy:
# lablup/all-smi, src/device/readers/furiosa.rs.


def furiosa_smi_status(bodies: Any) -> Listing:
    """One entry per NPU, without PCI addresses. An NPU is busy if a process has one of its processing elements.

    RNGD shows that as `pe_occupancy`, Warboy as the status of the core.
    """
    found = tuple(_furiosa_npu(body) for body in bodies)
    busy = tuple(
        writable(body["device"])
        for body in bodies
        if any(one.get("pe_occupancy") is True for one in body.get("pe_utilizations") or ())
        or any(one.get("status") != "available" for one in body.get("cores") or ())
    )
    twice = "furiosa-smi printed an NPU twice" if len({npu.name for npu in found}) < len(found) else ""
    return Listing(found, has_addresses=False, busy=busy, doubt=twice)


def _furiosa_npu(body: dict[str, object]) -> DeviceVerdict:
    word = writable(body["liveness"])
    return DeviceVerdict(writable(body["device"]), Health.HEALTHY if word == "alive" else Health.UNHEALTHY, word)


# Intel Gaudi: `hl-smi -Q index,bus_id,name -f csv,noheader`, one line per device that answers.
#
# Source of the form: docs.habana.ai, System Management Interface Tool (hl-smi); public recordings of its CSV.


def hl_smi_query(out: str, _count: int) -> Listing:
    """The query's output. A device that the driver took down has no line; one without a name is bad."""
    rows, unread = _csv_rows(out)
    return Listing(tuple(map(_hl_device, rows)), unread)


def _csv_rows(out: str) -> tuple[list[list[str]], int]:
    """The rows with an index, a PCI address and a name, and the number of rows that cannot be read.

    A line that does not begin with an index is a warning and no row, except a last line that was cut.
    """
    rows, unread = [], 0
    for line in out.splitlines(keepends=True):
        row = [field.strip() for field in line.split(",")]
        if len(row) >= 3 and row[0].isdecimal() and pci_address(row[1]) and line.endswith("\n"):
            rows.append(row)
        elif row[0].isdecimal() or (line.strip() and not line.endswith("\n")):
            unread += 1
    if not rows and not unread and out.strip():
        raise ValueError("no row")
    return rows, unread


def _hl_device(row: list[str]) -> DeviceVerdict:
    is_known = row[2] not in ("", "N/A")
    health, word = (Health.HEALTHY, "listed") if is_known else (Health.UNHEALTHY, "without a name")
    return DeviceVerdict(writable(f"aip {row[0]}"), health, word, pci_address(row[1]))


# Huawei: the table of `npu-smi info`, and the list of `npu-smi info -l`.
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

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BARS = str.maketrans({"│": "|", "┃": "|", "║": "|"})
_CARD = re.compile(r"(\d+)\s+(\S.*)")
_CHIP = re.compile(r"(\d+)(?:\s+(?:\d+|-|NA))?")
_FIELD = re.compile(r"\s*(Total Count|NPU ID|Chip Count)\s*:\s*(\d{1,9})\s*", re.ASCII)
MOST_CHIPS = 64
"""On one card, where the largest has four. A larger number is invalid, and would make a list of that length."""

Row = tuple[str, ...] | None
"""The cells of a table's line; None for a border or another line."""


def npu_smi_table(out: str, _count: int) -> Listing:
    """`npu-smi info`."""
    text = _COLOUR.sub("", out).translate(_BARS)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    chips, halves = _chips([_cells(line) for line in lines])
    if not chips or not _is_closed(lines):
        return Listing(chips, MANY)
    addressed = sum(bool(chip.address) for chip in chips)
    return Listing(chips, halves + (len(chips) - addressed if addressed else 0))


def npu_smi_listing(out: str, count: int) -> Listing:
    """`npu-smi info -l`: the cards that answer and their numbers of chips, without their health.

    It has no bus ids, and a PCI function has one or two chips: the list is complete only if it has a card for each one.
    """
    fields = [(found.group(1), int(found.group(2))) for found in map(_FIELD.fullmatch, out.splitlines()) if found]
    totals = [value for name, value in fields if name == "Total Count"]
    cards = [(name, value) for name, value in fields if name != "Total Count"]
    names, counts = [name for name, _ in cards], [value for _, value in cards]
    is_list = names == ["NPU ID", "Chip Count"] * (len(names) // 2) and totals == [len(names) // 2]
    is_list = is_list and len(set(counts[::2])) == len(counts[::2])
    if not is_list or any(chips > MOST_CHIPS for chips in counts[1::2]):
        raise ValueError("not a list of cards")
    devices: list[DeviceVerdict] = []
    for card, chips in zip(counts[::2], counts[1::2], strict=True):
        if not chips:
            devices.append(DeviceVerdict(f"npu {card}", Health.UNHEALTHY, "without a chip"))
        devices += [DeviceVerdict(f"npu {card} chip {chip}", Health.HEALTHY, "listed") for chip in range(chips)]
    doubt = ""
    if len(names) // 2 < count:
        lists = f"npu-smi lists {len(devices)} chip(s) on {len(names) // 2} card(s)"
        doubt = f"{lists}; unknown if on all {count} PCI devices"
    return Listing(tuple(devices), has_addresses=False, doubt=doubt)


def _is_closed(lines: list[str]) -> bool:
    """True if the last line is a border, as wide as the first one."""
    borders = [line for line in lines if line.startswith("+") and line.endswith("+")]
    return bool(borders) and lines[-1] == borders[-1] and len(borders[-1]) >= len(borders[0])


def _cells(line: str) -> Row:
    if not (line.startswith("|") and line.endswith("|") and len(line) > 1):
        return None
    return tuple(cell.strip() for cell in line[1:-1].split("|"))


def _chips(rows: list[Row]) -> tuple[tuple[DeviceVerdict, ...], int]:
    """The chips in a table's rows, and the number of chips of which one of two rows is missing."""
    chips: list[DeviceVerdict] = []
    halves = 0
    left = [*rows, None]
    while len(left) > 1:
        chip = _npu_chip(left[0], left[1])
        if chip is not None:
            chips.append(chip)
        else:
            halves += _is_half(left[0])
        del left[: 1 if chip is None else 2]
    return tuple(chips), halves


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

_REMARK = re.compile(r"\[([^\]]*)\]|(ERR!)")
_HARMLESS = {"n/a", "not supported", "insufficient permissions"}


def nvidia_smi_query(out: str, _count: int) -> Listing:
    """The query's output. A GPU is bad if a field has a remark such as `[GPU requires reset]` or `ERR!`."""
    rows, unread = _csv_rows(out)
    if not rows and not unread:
        raise ValueError("no row")
    return Listing(tuple(map(_nvidia_gpu, rows)), unread)


def _nvidia_gpu(row: list[str]) -> DeviceVerdict:
    remarks = [first or second for first, second in _REMARK.findall(", ".join(row[2:]))]
    bad = [remark for remark in remarks if remark.lower() not in _HARMLESS]
    health = Health.UNHEALTHY if bad else Health.HEALTHY
    return DeviceVerdict(f"gpu {row[0]}", health, "; ".join(bad) or "without errors", pci_address(row[1]))


# Rebellions: `rbln-smi -j`, one status per device; `normal` is healthy.

_NAMED_BY = ("npu", "name", "uuid", "device", "pci")
"""The identity of a device; a version may leave out some of these."""


def rbln_smi_devices(body: Any) -> Listing:
    """The devices, with PCI addresses if this version prints them."""
    found = tuple(map(_rbln_device, body["devices"]))
    names = {tuple(str(one.get(key)) for key in _NAMED_BY) for one in body["devices"]}
    count = len(body.get("contexts") or ())
    return Listing(
        found,
        has_addresses=any("pci" in one for one in body["devices"]),
        busy=(f"{count} context(s)",) if count else (),
        doubt="rbln-smi printed a device twice" if len(names) < len(found) else "",
    )


def _rbln_device(body: dict[str, object]) -> DeviceVerdict:
    status = writable(body["status"])
    health = Health.HEALTHY if status == "normal" else Health.UNHEALTHY
    return DeviceVerdict(writable(body["name"]), health, status, pci_address(str(body.get("pci", ""))))


# Tenstorrent: `tt-smi -s`, a snapshot of all chips as JSON.
#
# Source of the form: tenstorrent/tt-smi, and public recordings of its snapshots.


def tt_smi_snapshot(body: Any) -> Listing:
    """The chips on the PCI bus; a chip that is reached through another one has no address, and is left out."""
    return Listing(tuple(chip for chip in map(_tt_chip, body["device_info"]) if chip.address))


def _tt_chip(body: dict[str, Any]) -> DeviceVerdict:
    board, telemetry = body["board_info"], body["telemetry"]
    address = pci_address(str(board["bus_id"]))
    health, word = Health.HEALTHY, "answering"
    if not isinstance(telemetry, dict) or not telemetry:
        health, word = Health.UNHEALTHY, "without telemetry"
    elif board.get("dram_status") is False and _reports_dram(str(board["board_type"]), body.get("firmwares")):
        health, word = Health.UNHEALTHY, "without its DRAM"
    return DeviceVerdict(writable(f"{board['board_type']} {address}"), health, word, address)


def _reports_dram(board: str, firmwares: Any) -> bool:
    """False for a p100a before firmware 19.7, whose `dram_status` is always false (tenstorrent/tt-smi#223)."""
    version = str(firmwares.get("fw_bundle_version", "")) if isinstance(firmwares, dict) else ""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", version)
    return not board.startswith("p100a") or (found is not None and (int(found[1]), int(found[2])) >= (19, 7))


# The table of parsers.

EXIT_STATUS = "exit-status"


PARSERS: dict[str, Parser] = {
    EXIT_STATUS: lambda _out, _count: Listing(),
    "amd-smi-list": _json(amd_smi_listing),
    "furiosa-smi": _json(furiosa_smi_status),
    "hl-smi": hl_smi_query,
    "npu-smi": npu_smi_table,
    "npu-smi-list": npu_smi_listing,
    "nvidia-smi": nvidia_smi_query,
    "rbln-smi": _json(rbln_smi_devices),
    "tt-smi": _json(tt_smi_snapshot),
}
"""By the name in a profile's `probe.parser`."""

SHOWS_USE = frozenset({"furiosa-smi", "rbln-smi"})
"""Parsers whose result has the devices that are busy."""
