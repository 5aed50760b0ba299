"""`npu-smi` is read by the shape of its table: every chip, whatever the width, and nothing else that looks like one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from driver_manager.domain.health.parsers import CODES, parse
from driver_manager.domain.host import Health, ProbeResult

GOLDEN = Path(__file__).parents[1] / "golden/npu-smi"
TABLES = {
    "910b-four-cards": ("0000:c1:00.0", "0000:01:00.0", "0000:c2:00.0", "0000:02:00.0"),
    "310p-two-chips-per-card": ("0000:01:00.0", "0000:01:00.0", "0000:81:00.0", "0000:81:00.0"),
    "310p-old-without-processes": ("0000:00:07.0",),
    "310-four-chips-on-a-card": ("0000:05:00.0", "0000:06:00.0", "0000:07:00.0", "0000:08:00.0"),
    "910_93-two-chips-per-npu": ("0000:9d:00.0", "0000:9f:00.0", "0000:99:00.0", "0000:9b:00.0"),
}
UNLOADED = "DrvMngGetConsoleLogLevel failed. (ret=4)\ndcmi module initialize failed. ret is -8005\n"
BUSY = "dcmi model initialized failed, because the device is used. ret is -8020\n"


def golden(name: str) -> str:
    return (GOLDEN / f"{name}.txt").read_text()


def table(out: str, present: tuple[str, ...] = (), status: int = 0) -> ProbeResult:
    return parse("npu-smi", status, out, out.strip().rpartition("\n")[2] or "no output", present)


def functions(name: str) -> tuple[str, ...]:
    return tuple(sorted(set(TABLES[name])))


@pytest.mark.parametrize("name", TABLES)
def test_every_chip_of_a_table_is_seen_with_its_address(name: str) -> None:
    result = table(golden(name), functions(name))
    assert tuple(device.address for device in result.devices) == TABLES[name]
    assert result.health is Health.HEALTHY
    assert result.reason == f"{len(TABLES[name])} device(s) OK"
    assert len({device.name for device in result.devices}) == len(result.devices)


def test_chips_of_one_card_have_names_of_their_own() -> None:
    names = [device.name for device in table(golden("310p-two-chips-per-card")).devices]
    assert names == ["npu 1 chip 0", "npu 1 chip 1", "npu 32768 chip 0", "npu 32768 chip 1"]


WORDS = [("Warning", Health.HEALTHY), ("Alarm", Health.UNHEALTHY), ("Critical", Health.UNHEALTHY)]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(("word", "health"), [*WORDS, ("UNKNOWN", Health.UNHEALTHY), ("critical", Health.UNHEALTHY)])
def test_exit_status_0_is_not_health(name: str, word: str, health: Health) -> None:
    lines = golden(name).splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if "| OK " in line)
    lines[last] = lines[last].replace("| OK" + " " * (len(word) - 2), f"| {word}")
    result = table("".join(lines), functions(name))
    assert result.health is health
    assert (result.devices[-1].health, result.devices[-1].reason) == (health, word)
    assert {device.health for device in result.devices[:-1]} <= {Health.HEALTHY}
    if health is Health.UNHEALTHY:
        assert result.reason == f"{result.devices[-1].name} is {word}"


def test_a_word_of_another_locale_is_unknown_and_the_chip_still_counts() -> None:
    result = table(
        golden("910b-four-cards").replace("| OK            |", "| 正常          |", 1), functions("910b-four-cards")
    )
    assert result.health is Health.UNKNOWN
    assert [device.health for device in result.devices] == [Health.UNKNOWN] + [Health.HEALTHY] * 3
    assert result.reason == "npu 0 chip 0 is 正常"


FOREIGN: list[Callable[[str], str]] = [
    lambda text: text.replace("NPU   Name ", "卡号  名称 ").replace("Health", "健康状态").replace("Process", "进程"),
    lambda text: text.replace("93.0", "93,0").replace("90.4", "90,4"),
    lambda text: text.replace(" " * 8, " "),
    lambda text: text.replace("|", "|  "),
    lambda text: text.replace("|", "│"),
    lambda text: text.replace("OK", "\x1b[1;32mOK\x1b[0m"),
    lambda text: "\n".join("    " + line for line in text.splitlines()),
    lambda text: text.replace("\n", "\r\n"),
    lambda text: text + "\n\n",
    lambda text: "a warning before the table\n" + text,
]


@pytest.mark.parametrize("change", range(len(FOREIGN)))
def test_locale_width_colour_and_frame_do_not_matter(change: int) -> None:
    result = table(FOREIGN[change](golden("910b-four-cards")), functions("910b-four-cards"))
    assert (result.health, len(result.devices)) == (Health.HEALTHY, 4), result


@pytest.mark.parametrize("name", TABLES)
def test_half_a_table_is_unknown_wherever_it_breaks_off(name: str) -> None:
    whole = golden(name)
    last_chip = whole.index(TABLES[name][-1][5:].upper())
    for cut in range(whole.index("\n", last_chip)):
        # Right after a border nothing tells that there should have been more, but the PCI bus.
        ends_with_border = whole[:cut].rstrip("\n").endswith("+") and "+\n" in whole[cut - 2 : cut + 1]
        allowed = {Health.UNKNOWN, Health.UNHEALTHY} if ends_with_border else {Health.UNKNOWN}
        assert table(whole[:cut], functions(name)).health in allowed, whole[:cut]


@pytest.mark.parametrize("name", TABLES)
def test_a_bad_chip_in_half_a_table_counts(name: str) -> None:
    bad = golden(name).replace("| OK      ", "| Critical", 1)
    end_of_chip = bad.index("\n", bad.index("\n", bad.index("Critical")) + 1)
    assert table(bad[: end_of_chip - 80]).health is Health.UNKNOWN
    assert table(bad[: end_of_chip + 40]).health is Health.UNHEALTHY


@pytest.mark.parametrize("name", [name for name, chips in TABLES.items() if len(set(chips)) > 1])
def test_a_card_less_than_the_pci_bus_has_is_named(name: str) -> None:
    more = (*functions(name), "0000:f1:00.0")
    result = table(golden(name), more)
    assert result.health is Health.UNHEALTHY
    assert result.reason == f"{len(functions(name))} of {len(more)} PCI devices seen; 0000:f1:00.0 missing"
    assert result.devices[-1].address == "0000:f1:00.0"


def test_a_function_that_lacks_is_seen_though_there_are_as_many_chips_as_functions() -> None:
    one_card = golden("310p-old-without-processes")
    chip = one_card[one_card.index("| 7 ") :]
    two_chips = one_card + chip.replace("| 0       0 ", "| 1       1 ")
    assert table(two_chips, ("0000:00:07.0",)).health is Health.HEALTHY
    assert "0000:00:08.0 missing" in table(two_chips, ("0000:00:07.0", "0000:00:08.0")).reason


def test_a_row_of_the_process_table_is_no_chip() -> None:
    lines = golden("910b-four-cards").replace("python3  ", "Critical ")
    assert table(lines).health is Health.HEALTHY


@pytest.mark.parametrize(
    ("status", "out", "health", "said"),
    [
        (187, UNLOADED, Health.UNHEALTHY, "-8005: not initialised"),
        (187, "", Health.UNHEALTHY, "-8005: not initialised"),
        (186, "", Health.UNHEALTHY, "-8006: timeout"),
        (184, "There is no NPU card on this server.\n", Health.UNHEALTHY, "-8008: no device"),
        (180, "", Health.UNHEALTHY, "-8012: device not ready"),
        (172, BUSY, Health.UNKNOWN, "-8020: device in use"),
        (172, "", Health.UNKNOWN, "-8020: device in use"),
        (1, BUSY, Health.UNKNOWN, "-8020: device in use"),
        (193, "", Health.UNKNOWN, "-8255: not supported"),
        (190, "", Health.UNKNOWN, "-8002: no permission"),
        (179, "", Health.UNKNOWN, "-8013: not supported in this container"),
        (175, "", Health.UNKNOWN, "-8017: firmware is being upgraded"),
        (183, "call failed. ret is -8009\n", Health.UNHEALTHY, "-8009: call failed"),
        (1, "", Health.UNHEALTHY, "exit status 1"),
        (-11, "", Health.UNHEALTHY, "exit status -11"),
        (-9, "", Health.UNKNOWN, "killed from outside"),
        (127, "", Health.UNKNOWN, "no output"),
        (126, "", Health.UNKNOWN, "no output"),
        (0, "", Health.UNKNOWN, "unexpected output"),
        (0, "There is no NPU card on this server.\n", Health.UNHEALTHY, "sees no device"),
        (0, "\x00\xff\ufffd" * 1000, Health.UNKNOWN, "unexpected output"),
    ],
)
def test_a_failure_is_read_by_its_code(status: int, out: str, health: Health, said: str) -> None:
    for parser in ("npu-smi", "npu-smi-list"):
        result = parse(parser, status, out, out.strip() or "no output")
        assert result.health is health
        assert said in result.reason


def test_the_exit_statuses_are_the_low_bytes_that_the_vendor_uses() -> None:
    assert [code & 0xFF for code in (-8005, -8006, -8008, -8012, -8020, -8255)] == [187, 186, 184, 180, 172, 193]
    assert len({code & 0xFF for code in CODES}) == len(CODES)


LISTED = golden("list-two-cards")
EMPTY_CARD = LISTED.replace("Chip Count                     : 2", "Chip Count : 0")
THREE_CARDS = LISTED.replace("Total Count                    : 2", "Total Count : 3")


@pytest.mark.parametrize(
    ("out", "present", "health", "said"),
    [
        (LISTED, 2, Health.HEALTHY, "3 device(s) listed"),
        (LISTED, 3, Health.UNKNOWN, "3 chip(s) on 2 card(s); unknown if on all 3 PCI devices"),
        (LISTED, 4, Health.UNHEALTHY, "3 of 4 PCI devices seen"),
        (LISTED.replace("32768", "1"), 2, Health.UNKNOWN, "unexpected output"),
        (EMPTY_CARD, 1, Health.UNHEALTHY, "npu 32768 is without a chip"),
        (THREE_CARDS, 1, Health.UNKNOWN, "unexpected output"),
        (LISTED[: LISTED.rindex("Chip")], 1, Health.UNKNOWN, "unexpected output"),
        ("Total Count : 0\n", 1, Health.UNHEALTHY, "sees no device"),
        ("", 1, Health.UNKNOWN, "unexpected output"),
    ],
)
def test_the_list_tells_which_cards_answer(out: str, present: int, health: Health, said: str) -> None:
    addresses = tuple(f"0000:0{number}:00.0" for number in range(present))
    result = parse("npu-smi-list", 0, out, "said", addresses)
    assert result.health is health
    assert said in result.reason


def is_complete(result: ProbeResult, name: str) -> bool:
    """Whether each PCI function of the table is among the devices."""
    return {device.address for device in result.devices} >= set(functions(name))


@settings(derandomize=True)
@given(st.sampled_from(sorted(TABLES)), st.lists(st.integers(0, 28), max_size=29, unique=True))
@example("310p-two-chips-per-card", [14, 0, 1, 9, 21, 12, 7, 2])
def test_no_garbled_table_is_healthy_with_a_chip_less(name: str, order: list[int]) -> None:
    lines = golden(name).splitlines()
    result = table("\n".join(lines[number] for number in order if number < len(lines)), functions(name))
    assert result.health is not Health.HEALTHY or is_complete(result, name)


@pytest.mark.parametrize("name", [name for name, chips in TABLES.items() if len(set(chips)) > 1])
def test_no_two_rows_stand_in_for_a_chip_that_lacks(name: str) -> None:
    lines = golden(name).splitlines()
    lacking = TABLES[name][-1][5:].upper()
    rest = [line for line in lines if lacking not in line]
    chip = lines.index(next(line for line in lines if lacking in line))
    head, border = lines[: chip - 1], lines[2]
    for upper, lower in itertools.product(rest, repeat=2):
        result = table("\n".join((*head, upper, lower, border)), functions(name))
        assert result.health is not Health.HEALTHY, (upper, lower)


ROW = "| 1       310P3                 | {word:<15} | NA           45                0     / 0             |\n"
NO_BUS_ID = "| 1       1   | NA   | 0   1511 / 43693   |\n"


@pytest.mark.parametrize(("word", "health"), [("OK", Health.UNKNOWN), ("Critical", Health.UNHEALTHY)])
def test_a_chip_without_a_bus_id_among_chips_with_one_is_no_chip(word: str, health: Health) -> None:
    lines = golden("310p-two-chips-per-card").splitlines(keepends=True)
    lines[12:17] = [ROW.format(word=word), NO_BUS_ID]
    result = table("".join(lines), functions("310p-two-chips-per-card"))
    assert result.health is health
    assert Health.HEALTHY not in {device.health for device in result.devices if not device.address}


@given(st.text(alphabet="|+-= \n0O K:.1aNPU", max_size=400))
def test_no_text_breaks_the_table_parser(text: str) -> None:
    assert table(text).health in Health


@pytest.mark.parametrize("name", TABLES)
def test_chips_of_which_no_bus_id_can_be_read_are_not_counted(name: str) -> None:
    blind = re.sub(r"[0-9A-F]{4}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]", "NA          ", golden(name))
    result = table(blind, functions(name))
    assert (result.health, result.reason) == (Health.UNKNOWN, "no device has a PCI address that can be read")
