"""Options are declared once, and a duration is Go's form or plain seconds and nothing else."""

from __future__ import annotations

from typing import assert_type

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain import settings
from driver_manager.domain.settings import AnySetting, Setting, SettingKind, Values
from driver_manager.domain.text import MAX_DURATION_S, parse_duration

ALL = [*settings.CLUSTER, *settings.HOST, *settings.DRIVER, *settings.WORKLOADS, *settings.LOGGING]
HEALTH = [*settings.HEALTH, *settings.HOST, *settings.LOGGING]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("90", 90.0),
        ("1.5", 1.5),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("1m0.5s", 60.5),
        ("250ms", 0.25),
        ("1m250ms", 60.25),
        ("10us", 1e-5),
        ("10µs", 1e-5),
        ("10ns", 1e-8),
        (" 5m ", 300.0),
        ("720h", 2_592_000.0),
    ],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "s",
        "five",
        "5x",
        "-5m",
        "+-1",
        "5m30",
        "30 s",
        "1h 30m",
        "5m;",
        "1e3",
        "inf",
        "nan",
        "0x10",
        "5mm",
    ],
)
def test_anything_else_is_refused_with_the_text_in_the_message(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["721h", "2592001", "9" * 400])
def test_more_than_thirty_days_is_a_mistake(text: str) -> None:
    with pytest.raises(ValueError, match="longer than 30 days"):
        parse_duration(text)


@given(st.text(max_size=12))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert 0 <= seconds <= MAX_DURATION_S


@given(st.integers(0, 500), st.integers(0, 59), st.integers(0, 59))
def test_gos_own_form_is_read_back(hours: int, minutes: int, seconds: int) -> None:
    assert parse_duration(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


@pytest.mark.parametrize("options", [ALL, HEALTH])
def test_every_option_of_a_command_has_one_name_and_one_variable(options: list[AnySetting]) -> None:
    assert len({setting.name for setting in options}) == len(options)
    variables = [name for setting in options for name in (setting.env, *setting.also)]
    assert len(set(variables)) == len(variables)
    assert all(setting.help for setting in options)


def has_a_default_of_its_kind(setting: AnySetting) -> bool:
    if setting.kind is SettingKind.DURATION and setting.default is not None:
        return parse_duration(str(setting.default)) >= 0
    if setting.kind is SettingKind.CHOICE:
        return setting.default in setting.choices
    return setting.kind is not SettingKind.FLAG or setting.default is False


def test_every_default_is_a_value_of_its_option() -> None:
    assert [one.name for one in ALL if not has_a_default_of_its_kind(one)] == []
    assert [one.flag for one in ALL if not one.flag.startswith("--") or "_" in one.flag] == []


@pytest.mark.parametrize(
    ("env", "default"),
    [
        ("POD_TERMINATION_TIMEOUT", "5m"),
        ("RECONCILE_DEADLINE", "30m"),
        ("DRIVER_LOAD", "container"),
        ("DRIVER_PROFILE", "auto"),
        ("DRIVER_CONFIG_DIGEST", None),
        ("FORCE_REINSTALL", False),
        ("ENABLE_NPU_POD_EVICTION", False),
        ("ENABLE_AUTO_DRAIN", False),
        ("DRAIN_TIMEOUT_SECONDS", "0s"),
        ("NPU_POD_EVICTION_FORCE", False),
        ("NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA", False),
        ("EVICT_HOLDERS", False),
        ("HEALTH_WATCH_INTERVAL", "60s"),
        ("HEALTH_WATCH_FAILURES", "3"),
        ("METRICS_ADDR", None),
        ("METRICS_TEXTFILE", None),
    ],
)
def test_defaults_are_those_of_the_contract(env: str, default: object) -> None:
    (found,) = {setting for setting in (*ALL, *HEALTH) if setting.env == env}
    assert found.default == default


def test_the_default_waits_fit_into_the_default_deadline() -> None:
    default = {setting.name: setting.default for setting in ALL}
    names = ("pod_termination_timeout", "device_free_timeout", "pod_eviction_timeout", "wait_for_completion_timeout")
    assert sum(parse_duration(str(default[name])) for name in names) <= parse_duration(
        str(default["reconcile_deadline"])
    )


def test_values_come_in_their_own_type() -> None:
    values = Values(
        {
            settings.NODE_NAME: "x",
            settings.POD_NAME: None,
            settings.DRIVER_ROOT: "",
            settings.NO_WAIT: True,
            settings.TAKE_OVER: None,
            settings.REBOOT_GRACE: 1.5,
            settings.API_TIMEOUT: None,
            settings.HEALTH_WATCH_FAILURES: 3,
            settings.LOG_LEVEL: "debug",
        }
    )
    assert (values[settings.NODE_NAME], values[settings.POD_NAME], values[settings.DRIVER_ROOT]) == ("x", "", "")
    assert assert_type(values[settings.NO_WAIT], bool) is True
    assert assert_type(values[settings.TAKE_OVER], bool) is False
    assert assert_type(values[settings.REBOOT_GRACE], float) == 1.5
    assert assert_type(values[settings.API_TIMEOUT], float | None) is None
    assert assert_type(values[settings.HEALTH_WATCH_FAILURES], int) == 3
    assert assert_type(values[settings.LOG_LEVEL], str) == "debug"


def test_a_setting_that_the_command_does_not_take_is_an_error_and_never_off() -> None:
    values = Values({settings.REBOOTER_INTERVAL: 1.0})
    with pytest.raises(KeyError, match=r"does not take --no-wait \(NO_WAIT\)"):
        values[settings.NO_WAIT]
    with pytest.raises(KeyError, match="HEALTH_WATCH_INTERVAL"):
        values[settings.HEALTH_WATCH_INTERVAL]
    assert values.get(settings.DRIVER_ROOT, "/else") == "/else"
    assert values.get(settings.REBOOTER_INTERVAL, 2.0) == 1.0


def test_each_constant_is_named_as_its_variable_and_stands_under_one_heading() -> None:
    constants = {name: value for name, value in vars(settings).items() if isinstance(value, Setting)}
    assert {name: one.env for name, one in constants.items()} == {name: name for name in constants}
    under = [one for _, group in settings.HEADINGS for one in group]
    assert sorted(one.env for one in under) == sorted(constants)
