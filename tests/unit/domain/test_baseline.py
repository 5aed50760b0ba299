"""The baseline of a swap: a device that was bad before does not count, one that got worse or is missing does."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.baseline import Baseline, baseline_of_boot, encode, in_service, of_new_driver
from driver_manager.domain.host import DeviceVerdict, Health, ProbeResult

GOOD, BAD, UNCLEAR = Health.HEALTHY, Health.UNHEALTHY, Health.UNKNOWN
ONE, TWO = "0000:c1:00.0", "0000:c2:00.0"
BUS = {ONE: "rebellions", TWO: "rebellions"}


def device(address: str, word: str = "normal", name: str = "") -> DeviceVerdict:
    health = {"normal": GOOD, "unclear": UNCLEAR}.get(word, BAD)
    return DeviceVerdict(name or f"rbln{address[6:7]}", health, word, address, is_lost=word == "missing")


def sample(*words: str, bus: dict[str, str] | None = BUS, served: tuple[str, ...] = (ONE, TWO)) -> ProbeResult:
    """A sample of up to two devices, by the word of each; "-" is not listed."""
    devices = tuple(device(at, word) for at, word in zip((ONE, TWO), words, strict=False) if word != "-")
    bad = [f"{one.name} is {one.reason}" for one in devices if one.health is BAD]
    health = BAD if bad else UNCLEAR if any(one.health is UNCLEAR for one in devices) else GOOD
    return ProbeResult(health, "; ".join(bad) or "fine", devices, served=served, on_bus=bus)


def known_as(now: ProbeResult, **fields: Any) -> Baseline:
    known = {name: getattr(now, name) for name in ("health", "rest", "reason", "devices", "served")}
    return Baseline("boot", "1", **{**known, "functions": now.on_bus or {}, **fields})


def before(*words: str, **fields: Any) -> Baseline:
    return known_as(sample(*words), **fields)


FAILED = ProbeResult(BAD, "rbln-smi failed with exit status 1: x", served=(ONE, TWO), on_bus=BUS)
FAILED_BEFORE = before("normal", health=BAD, reason=FAILED.reason, devices=())
NO_TOOL = ProbeResult(UNCLEAR, "rbln-smi is not in /run/rbln/driver", served=(ONE, TWO), on_bus=BUS)
NOTHING_KNOWN = before("normal", health=UNCLEAR, devices=())
SHORT = replace(sample("normal", "normal"), health=BAD, rest=BAD, reason="1 of 3 seen")
DOUBLE = ProbeResult(BAD, "rbln1 is error", (device(ONE), device(ONE, "error")), served=(ONE,), on_bus=BUS)
LEFT = sample("normal", "-", bus={ONE: "rebellions"}, served=(ONE,))
NOT_TAKEN = sample("normal", "-", bus={ONE: "rebellions", TWO: ""}, served=(ONE,))


def test_a_new_driver_is_judged_by_what_got_worse() -> None:
    for known, after, health, reason in (
        (before("normal", "normal"), sample("normal", "normal"), GOOD, "fine"),
        (before("normal", "error"), sample("normal", "error"), GOOD, "rbln2 is error, as before the swap"),
        (before("normal", "error"), sample("normal", "hang"), GOOD, "rbln2 is hang, as before the swap"),
        (before("normal", "error"), sample("normal", "normal"), GOOD, "fine"),
        (before("normal", "error"), sample("error", "error"), BAD, "rbln1 is error"),
        (before("normal", "normal"), sample("normal", "error"), BAD, "rbln2 is error"),
        (before("normal", "normal"), sample("normal", "missing"), BAD, "rbln2 is missing"),
        (before("normal", "error"), sample("normal", "missing"), BAD, "rbln2 is missing"),
        (before("normal", "missing"), sample("normal", "missing"), GOOD, "rbln2 is missing, as before the swap"),
        (before("normal", "missing"), sample("normal", "error"), GOOD, "rbln2 is error, as before the swap"),
        (before("normal", "normal"), LEFT, BAD, f"{TWO} is lost: it served before and is not on the PCI bus any more"),
        (before("normal", "normal"), NOT_TAKEN, BAD, f"{TWO} is without a driver now"),
        (before("normal", "normal"), sample("normal", "unclear"), UNCLEAR, "fine"),
        (before("normal", "normal"), NO_TOOL, UNCLEAR, "not in"),
        (before("normal", "normal"), replace(LEFT, on_bus=None), GOOD, "fine"),
        (before("normal", "normal"), FAILED, BAD, "exit status 1"),
        # A device that was lost before may leave for good; one that is excluded or given away has a driver.
        *((before("normal", "missing"), NOT_TAKEN, GOOD, "fine"), (before("normal", "missing"), LEFT, GOOD, "fine")),
        (before("normal", "normal"), replace(sample("normal"), served=(ONE,)), GOOD, "fine"),
        # What the tool reports beside single devices counts, also beside a device that was bad before.
        (before("normal", "error"), replace(sample("-", "error"), rest=BAD, reason="1 of 2 seen"), BAD, ""),
        (before("normal", "error"), replace(sample("normal", "error"), rest=UNCLEAR), UNCLEAR, ""),
        (FAILED_BEFORE, sample("normal", "error"), GOOD, "rbln2 is error, unknown if that was so before the swap"),
        (replace(before("normal", "normal"), health=BAD, rest=BAD), FAILED, BAD, "exit status 1"),
        (replace(before("normal", "normal"), health=BAD, rest=BAD), SHORT, GOOD, "1 of 3 seen, as before the swap"),
        (known_as(DOUBLE), DOUBLE, GOOD, "rbln1 is error, as before the swap"),
        (known_as(DOUBLE), replace(DOUBLE, devices=(device(ONE, "error"),) * 2), BAD, "rbln1 is error"),
        # If the tool failed before, too, the new driver is no worse. If nothing was known, PCI functions are compared.
        (FAILED_BEFORE, FAILED, GOOD, "exit status 1: x, as before the swap"),
        (FAILED_BEFORE, LEFT, BAD, TWO),
        (NOTHING_KNOWN, sample("normal", "error"), GOOD, "rbln2 is error, unknown if that was so before the swap"),
        *((NOTHING_KNOWN, LEFT, BAD, TWO), (NOTHING_KNOWN, NOT_TAKEN, BAD, TWO)),
        (NOTHING_KNOWN, FAILED, BAD, "exit status 1"),
        # An answer that was not complete excuses only what it leaves open.
        (before("normal", "unclear"), sample("error", "normal"), BAD, "rbln1 is error"),
        (before("normal", "unclear"), sample("normal", "error"), GOOD, "rbln2 is error, unknown if that was so"),
        (replace(before("normal", "-"), rest=UNCLEAR), sample("normal", "error"), GOOD, "rbln2 is error, unknown if"),
        (replace(before("normal", "-"), rest=UNCLEAR), sample("error", "normal"), BAD, "rbln1 is error"),
        (None, sample("normal", "error"), BAD, "rbln2 is error"),
        (None, sample("normal", "missing"), GOOD, "rbln2 is missing"),
        (None, FAILED, BAD, "exit status 1"),
    ):
        found = of_new_driver(after, known)
        assert (found.health, reason in found.reason) == (health, True), (known, after, found)


def test_a_device_without_an_address_is_known_by_its_name() -> None:
    both = tuple(device("", name=name) for name in ("npu0", "npu1"))
    known = Baseline("boot", health=GOOD, devices=both)
    one_less = ProbeResult(GOOD, "1 device(s) alive", both[:1])
    assert of_new_driver(one_less, known).reason == "npu1 is not listed any more"
    assert of_new_driver(replace(one_less, devices=both), known).health is GOOD


def test_a_tool_of_another_version_may_name_devices_otherwise() -> None:
    def shown(text: str) -> ProbeResult:
        """Devices as name, word and, if the tool prints it, address."""
        rows = [(*row.split(), "")[:3] for row in text.split(", ")]
        devices = tuple(device(address, word, name) for name, word, address in rows)
        state = BAD if any(one.health is BAD for one in devices) else GOOD
        return ProbeResult(state, "shown", devices, served=(ONE, TWO), on_bus=BUS)

    for was, now, health in (
        *(("npu0 normal", f"npu0 normal {ONE}", GOOD), ("npu0 error", f"npu0 error {ONE}", GOOD)),
        *((f"npu0 error {ONE}", "npu0 error", GOOD), ("0 normal, 1 normal", "a normal, b normal", GOOD)),
        ("0 normal, 1 normal", "a normal", BAD),
        ("0 normal, 1 normal, 2 error", "0 normal, 2 error", BAD),
        *((f"npu0 normal {ONE}", f"npu0 error {TWO}", BAD), ("0 normal, 1 error", "a error, b normal", GOOD)),
        ("0 normal, 1 error", "a error, b error", BAD),
        ("0 normal, 1 normal", f"a normal {ONE}, b normal {TWO}", GOOD),
    ):
        assert of_new_driver(shown(now), known_as(shown(was))).health is health, (was, now)


def test_a_device_in_service_is_compared_with_what_served() -> None:
    """A bad device of the baseline counts again once it was healthy; a tool that always failed does count."""
    good, sick, worse = sample("normal", "normal"), sample("normal", "error"), sample("error", "error")
    for known, served, now, health in (
        *((None, (ONE, TWO), good, GOOD), (None, (ONE, TWO), LEFT, BAD), (None, (ONE,), LEFT, GOOD)),
        *((None, (ONE, TWO), replace(LEFT, on_bus=None), GOOD), (None, (ONE, TWO), NOT_TAKEN, GOOD)),
        (None, (ONE, TWO), replace(NO_TOOL, on_bus={ONE: ""}), BAD),
        *((before("normal", "normal"), (), LEFT, BAD), (before("normal", "error"), (ONE,), sick, GOOD)),
        *((before("normal", "error"), (ONE, TWO), sick, BAD), (before("normal", "error"), (ONE,), worse, BAD)),
        (FAILED_BEFORE, (), FAILED, BAD),
    ):
        assert in_service(now, known, served).health is health, (known, served, now)


def test_a_device_that_served_before_a_reload_counts_after_it() -> None:
    known, sick = before("normal", "error", is_reload=True), sample("normal", "error")
    rows = {((ONE,), (ONE, TWO)): BAD, ((ONE, TWO), ()): BAD, ((ONE,), (ONE,)): GOOD, ((), ()): GOOD}
    assert {row: in_service(sick, known, *row).health for row in rows} == rows
    assert baseline_of_boot(encode(known), "boot") == known


def test_a_lost_device_is_listed_once_with_its_address() -> None:
    (lost,) = (one for one in in_service(LEFT, None, (ONE, TWO)).devices if one.is_lost)
    assert lost.address == TWO
    listed_as_missing = sample("normal", "missing", bus={ONE: "rebellions"})
    assert [one.address for one in in_service(listed_as_missing, None, (ONE, TWO)).devices] == [ONE, TWO]


def test_what_serves_is_a_healthy_physical_function() -> None:
    good, bad = ProbeResult(GOOD, "2", (device("", name="a"),)), ProbeResult(BAD, "", (device("", "dead", name="a"),))
    for now, served in (
        *((sample("normal", "normal"), (ONE, TWO)), (sample("normal", "error"), (ONE,)), (FAILED, ())),
        *((sample("normal", "unclear"), (ONE,)), (sample("normal", "normal", served=(ONE,)), (ONE,))),
        *((replace(good, served=(ONE, TWO)), (ONE, TWO, "a")), (replace(bad, served=(ONE, TWO)), ())),
    ):
        assert in_service(now, None, ()).served == served, now


WORDS = st.sampled_from(["normal", "error", "missing", "unclear"])


@given(WORDS, WORDS)
def test_the_same_driver_again_is_never_worse(first: str, second: str) -> None:
    """So a rollback whose probe reports what the baseline reports is a success."""
    assert of_new_driver(sample(first, second), before(first, second)).health is not BAD


def test_a_baseline_counts_in_its_boot_only() -> None:
    known = replace(before("normal", "error"), parameters={"a.b": "1"}, services=("x.service",), references={"a": "1"})
    assert baseline_of_boot(encode(known), "boot") == known
    assert baseline_of_boot(encode(known), "next") is None
    assert [baseline_of_boot(text, "boot") for text in ("", "{", '{"schema": 2}', "[]")] == [None] * 4
    assert known.remarks == ("rbln2 is `error` before the swap; this will not count against the new driver",)
