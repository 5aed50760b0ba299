"""Options are declared once, with the contract's defaults, and each value has its type."""

from __future__ import annotations

import re
from pathlib import Path
from typing import assert_type

import pytest

from driver_manager.domain import settings
from driver_manager.domain.settings import AnySetting, Setting, SettingKind, Values
from driver_manager.domain.text import parse_duration

ALL = [*settings.CLUSTER, *settings.HOST, *settings.DRIVER, *settings.WORKLOADS, *settings.LOGGING]
HEALTH = [*settings.HEALTH, *settings.HOST, *settings.LOGGING]


def test_every_option_of_a_command_has_one_name_and_one_variable() -> None:
    for options in (ALL, HEALTH):
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


EVICTION = ("ENABLE_NPU_POD_EVICTION", "NPU_POD_EVICTION_FORCE", "NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA")
DEFAULTS: dict[object, set[str]] = {
    False: {*EVICTION, "FORCE_REINSTALL", "ENABLE_AUTO_DRAIN", "EVICT_HOLDERS"},
    None: {"DRIVER_CONFIG_DIGEST", "METRICS_ADDR", "METRICS_TEXTFILE"},
    "5m": {"POD_TERMINATION_TIMEOUT"},
    "30m": {"RECONCILE_DEADLINE"},
    "0s": {"DRAIN_TIMEOUT_SECONDS"},
    "container": {"DRIVER_LOAD"},
    "auto": {"DRIVER_PROFILE"},
    "60s": {"HEALTH_WATCH_INTERVAL"},
    "3": {"HEALTH_WATCH_FAILURES"},
}


def test_defaults_are_those_of_the_contract() -> None:
    found = {setting.env: setting.default for setting in (*ALL, *HEALTH)}
    wanted = {env: default for default, names in DEFAULTS.items() for env in names}
    assert {env: found[env] for env in wanted} == wanted


def test_the_default_waits_fit_into_the_default_deadline() -> None:
    default = {setting.name: str(setting.default) for setting in ALL}
    names = ("pod_termination_timeout", "device_free_timeout", "pod_eviction_timeout", "wait_for_completion_timeout")
    assert sum(parse_duration(default[name]) for name in names) <= parse_duration(default["reconcile_deadline"])


def test_values_come_in_their_own_type() -> None:
    given = {settings.NODE_NAME: "x", settings.POD_NAME: None, settings.DRIVER_ROOT: "", settings.LOG_LEVEL: "debug"}
    flags = {settings.NO_WAIT: True, settings.TAKE_OVER: None}
    numbers = {settings.REBOOT_GRACE: 1.5, settings.API_TIMEOUT: None, settings.HEALTH_WATCH_FAILURES: 3}
    values = Values({**given, **flags, **numbers})
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


def test_a_variable_that_is_nearly_one_of_ours_is_named_with_it() -> None:
    near = {
        "ENABLE_NPU_POD_EVICTON": "ENABLE_NPU_POD_EVICTION",
        "ENABLE_GPU_POD_EVICITON": "ENABLE_GPU_POD_EVICTION",
        "GPU_POD_EVICTION_FORCE": "NPU_POD_EVICTION_FORCE",
        "DRAIN_TIMEOUT_SECOND": "DRAIN_TIMEOUT_SECONDS",
        **dict.fromkeys(("FORCE_REINSTAL", "FORCE_REINSTALLL"), "FORCE_REINSTALL"),
        "HEALTH_WATCH_PERIOD": "HEALTH_WATCH_TIMEOUT",
        "NPU_POD_EVICTION_TIMEOUT": "POD_EVICTION_TIMEOUT",
    }
    others = (
        *("ENABLE_NPU_POD_EVICTION", "DRAIN_USE_FORCE", "POD_NAMES", "LOGLEVEL", "KUBE_CONFIG", "SYSROOT"),
        *("NVIDIA_DRIVER_ROOT", "DRIVER_TOOLKIT_IMAGE", "GPU_DIRECT_RDMA_ENABLED", "USE_HOST_MOFED"),
        *("NVIDIA_VISIBLE_DEVICES", "HOSTNAME", "NODE_IP", "https_proxy"),
        *(f"REBOOTER{end}" for end in ("_SERVICE_HOST", "_SERVICE_PORT", "_SERVICE_PORT_HTTP", "_PORT")),
        *(f"HEALTH_WATCH_PORT_9400_TCP{end}" for end in ("", "_PROTO", "_PORT", "_ADDR")),
        *(f"DRIVER_LOAD{end}" for end in ("_PORT", "_SERVICE_HOST")),
    )
    for name in (*near, *others):
        assert settings.mistyped([name, "PATH", "HOME"]) == ({name: near[name]} if name in near else {})


def test_no_variable_of_our_manifests_looks_like_a_typing_error() -> None:
    files = Path("deploy").rglob("*.yaml")
    names = {name for path in files for name in re.findall(r"\b[A-Z][A-Z0-9_]{5,}\b", path.read_text(encoding="utf-8"))}
    assert {"ENABLE_NPU_POD_EVICTION", "DRIVER_ROOT"} < names
    assert settings.mistyped(names) == {}
