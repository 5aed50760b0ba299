"""The words of both generations of the operator, and NVIDIA's, become one policy about users' pods."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from driver_manager import profiles
from driver_manager.adapters.host.files import HostRoots
from driver_manager.cli import health_watch, rebooter
from driver_manager.cli.options import with_options
from driver_manager.cli.reconcile import policy_for, restart_clients
from driver_manager.cli.session import PartialRead, Session, _with_last_label
from driver_manager.core.clients import ClientRestarter, ClientTurn
from driver_manager.domain import selectors, settings
from driver_manager.domain.errors import ConfigError, ExitCode
from driver_manager.domain.observation import EvictionRules, Loader, Mode, Policy
from driver_manager.domain.profile import NodeKeys, Profile
from driver_manager.domain.settings import AnySetting, SettingKind, Values
from tests.support.fakes.builders import ASCEND, PROFILE
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.host_documents import roots_of
from tests.support.fakes.host_folders import Tree

SETTINGS = (*settings.DRIVER, *settings.WORKLOADS)

OF_THE_HOST = {settings.DRIVER_ROOT, settings.DRIVER_CONFIG_DIGEST, settings.EVIDENCE_DIR}
"""What is observed, or kept, with them, not decided by them."""

OTHER = {SettingKind.FLAG: "true", SettingKind.DURATION: "7s", SettingKind.TEXT: "other", SettingKind.CHOICE: "manager"}
"""A value of each kind that is no default."""


def policy_of(env: dict[str, str], *argv: str, mode: Mode = Mode.CONTAINER) -> Policy:
    """The policy in an environment and a command line. Raises click's errors, ConfigError."""
    found: list[Policy] = []

    @click.command()
    @with_options(*((settings.VFIO,) if mode is Mode.VFIO else (settings.DRIVER, settings.WORKLOADS)))
    def command(values: Values) -> None:
        found.append(policy_for(values, mode))

    CliRunner(env=env).invoke(command, argv, catch_exceptions=False, standalone_mode=False)
    return found[0]


def as_env(words: str) -> dict[str, str]:
    """Variables as a shell takes them before a command."""
    return dict(word.split("=", 1) for word in shlex.split(words))


GENERATION_1 = as_env("""
    ENABLE_NPU_POD_EVICTION=true ENABLE_AUTO_DRAIN=false DRAIN_USE_FORCE=false DRAIN_POD_SELECTOR_LABEL=
    DRAIN_TIMEOUT_SECONDS=0s DRAIN_DELETE_EMPTYDIR_DATA=false""")
GENERATION_2 = as_env("""
    ENABLE_NPU_POD_EVICTION=true NPU_POD_EVICTION_FORCE=true NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA=true
    NPU_POD_EVICTION_DEVICE_CLASS=npu.rebellions.ai""")
NVIDIAS = as_env("""
    ENABLE_GPU_POD_EVICTION=true ENABLE_AUTO_DRAIN=true DRAIN_USE_FORCE=true DRAIN_POD_SELECTOR_LABEL=app=web
    DRAIN_TIMEOUT_SECONDS=90 DRAIN_DELETE_EMPTYDIR_DATA=true""")


def rules(env: dict[str, str], *argv: str) -> EvictionRules:
    return policy_of(env, *argv).eviction


EVICTS = EvictionRules(is_enabled=True)
WITH_CLASS = replace(EVICTS, deletes_empty_dirs=True, device_classes=("npu.rebellions.ai",))
DRAINS = replace(EVICTS, drains=True, forces=True, deletes_empty_dirs=True, drain_timeout_s=90.0)
OTHERS = as_env("""
    EVICT_HOLDERS=true POD_EVICTION_TIMEOUT=2m NPU_POD_EVICTION_DEVICE_CLASS=' a , ,b,' SAFE_LOAD=true
    WAIT_FOR_COMPLETION_SELECTOR='job in (a,b)' WAIT_FOR_COMPLETION_TIMEOUT=1h OPERATOR_TIMEOUT=3m IGNORE_SKIP=true""")
WAITS = Policy(completion=selectors.parse("job in (a,b)"), completion_timeout_s=3_600.0, operator_timeout_s=180.0)
EVICTS_HOLDERS = EvictionRules(evicts_holders=True, timeout_s=120.0, device_classes=("a", "b"))
AS_VFIO_MANAGER = {**GENERATION_2, "NPU_POD_EVICTION_FORCE": "false", "OPERATOR_NAMESPACE": "x"}
VFIO = Policy(mode=Mode.VFIO, driver_pod_leaves=True)


@pytest.mark.parametrize(
    ("env", "policy"),
    [
        ({}, Policy()),
        (GENERATION_1, Policy(eviction=EVICTS)),
        (GENERATION_2, Policy(eviction=replace(WITH_CLASS, forces=True))),
        (NVIDIAS, Policy(eviction=replace(DRAINS, drain_selector=selectors.parse("app=web")))),
        (OTHERS, replace(WAITS, eviction=EVICTS_HOLDERS, safe_load=True, ignore_skip=True)),
        ({}, VFIO),
        (AS_VFIO_MANAGER, replace(VFIO, eviction=WITH_CLASS)),
    ],
)
def test_the_words_of_each_operator_and_of_vfio_manager_become_one_policy(env: dict[str, str], policy: Policy) -> None:
    assert policy_of(env, mode=policy.mode) == policy


ALSO = {
    "enable_npu_pod_eviction": "is_enabled",
    "npu_pod_eviction_force": "forces",
    "npu_pod_eviction_delete_emptydir_data": "deletes_empty_dirs",
}
"""The rule of each setting that has another variable."""


@pytest.mark.parametrize("setting", [one for one in SETTINGS if one.also], ids=lambda one: str(one.name))
def test_the_first_variable_that_is_not_empty_counts(setting: AnySetting) -> None:
    for also in setting.also:
        found = [
            getattr(rules({setting.env: first, also: second}), ALSO[setting.name])
            for first, second in (("", "true"), ("", "false"), ("false", "true"), ("true", "false"), ("", ""))
        ]
        assert found == [True, False, False, True, False]


def test_a_flag_is_read_as_charts_write_it() -> None:
    found = {text: rules({"ENABLE_NPU_POD_EVICTION": text}).is_enabled for text in ("true", "True", "1", "yes", "0")}
    assert found == {"true": True, "True": True, "1": True, "yes": True, "0": False}


def test_the_command_line_goes_before_the_environment() -> None:
    env = {"ENABLE_NPU_POD_EVICTION": "false", "DRAIN_POD_SELECTOR_LABEL": "a", "DRAIN_TIMEOUT_SECONDS": "5m"}
    found = rules(env, "--enable-npu-pod-eviction", "--drain-pod-selector-label", "b", "--drain-timeout-seconds", "7")
    assert (found.is_enabled, found.drain_selector.text, found.drain_timeout_s) == (True, "b", 7.0)


VFIO_OTHER = {**OTHER, SettingKind.CHOICE: "container"}
VFIO_ELSEWHERE = {settings.EVIDENCE_DIR, settings.DRIVER_LOAD}
"""One belongs to the host, and of the other only one value matters."""


@pytest.mark.parametrize(
    ("mode", "known", "other"),
    [
        (Mode.CONTAINER, set(SETTINGS) - OF_THE_HOST - {settings.DRIVER_VERSION}, OTHER),
        (Mode.VFIO, set(settings.VFIO) - VFIO_ELSEWHERE, VFIO_OTHER),
    ],
    ids=["container", "vfio"],
)
def test_each_setting_changes_the_policy_in_a_way_of_its_own(mode: Mode, known: Any, other: Any) -> None:
    unchanged = policy_of({}, mode=mode)
    by_setting = {setting: policy_of({setting.env: other[setting.kind]}, mode=mode) for setting in known}
    assert [setting.env for setting, found in by_setting.items() if found == unchanged] == []
    assert [one.env for one, two in itertools.combinations(by_setting, 2) if by_setting[one] == by_setting[two]] == []


def test_a_driver_version_counts_only_where_the_host_loads() -> None:
    """The operators' driver pods have the variable, and a change of it alone is no other wish of a run."""
    loaders = ("container", "manager", "none")
    found = [policy_of({"DRIVER_LOAD": loader, "DRIVER_VERSION": "2.0"}).driver_version for loader in loaders]
    assert found == ["", "", "2.0"]


@pytest.mark.parametrize("name", ["DRAIN_POD_SELECTOR_LABEL", "WAIT_FOR_COMPLETION_SELECTOR", "CLIENT_SELECTOR"])
@pytest.mark.parametrize("text", ["a in b", ",", "=x", "a=b,"])
def test_a_bad_selector_is_a_configuration_error_that_names_its_variable(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is not a label selector: unable to parse") as caught:
        policy_of({name: text})
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.remedy


def test_a_blank_selector_is_none() -> None:
    for blank in ("", "  "):
        found = policy_of({"WAIT_FOR_COMPLETION_SELECTOR": blank, "DRAIN_POD_SELECTOR_LABEL": blank})
        assert (bool(found.completion), bool(found.eviction.drain_selector)) == (False, False)


def profile_of_run(values: Values, _: HostRoots) -> Profile:
    return PartialRead().session(values).profile


@pytest.mark.parametrize(
    "read", [profile_of_run, health_watch._profile, rebooter._profile], ids=["run", "health-watch", "rebooter"]
)
@pytest.mark.parametrize("state", ["on", "off"])
def test_with_node_state_off_no_command_has_its_keys(read: Callable[..., Profile], state: str, tmp_path: Path) -> None:
    tree, found = Tree(tmp_path), list[NodeKeys]()
    tree.put(ASCEND.paths.rebooter_record, "")
    command = with_options(settings.CLUSTER, settings.HOST, settings.LOGGING, (settings.EVIDENCE_DIR,))(
        lambda values: found.append(read(values, tree.roots).keys)
    )
    env = {"DRIVER_PROFILE": "ascend", "NODE_NAME": "n", "HOST_ROOT": str(tmp_path), "KUBECONFIG": "/nowhere"}
    runner = CliRunner(env={**env, "NODE_STATE": state})
    runner.invoke(click.command()(command), [], catch_exceptions=False, standalone_mode=False)
    off = replace(ASCEND.keys, state="", last_outcome="", generation="", version="")
    assert found == [ASCEND.keys if state == "on" else off]


def test_a_further_label_leaves_last_and_is_paused_and_the_drivers_own_never_does() -> None:
    key, driver = "example.com/dra-plugin", PROFILE.deploy.driver_key
    found = _with_last_label(PROFILE, key)
    assert found.deploy.last_keys == PROFILE.deploy.last_keys | {key}
    assert key in found.deploy.keys_in({key: "true"})
    assert (_with_last_label(found, key), _with_last_label(PROFILE, "")) == (found, PROFILE)
    named = replace(PROFILE.deploy, leave_last=("driver",))
    assert (driver in named.last_keys, named.keys_in({driver: "true"})) == (False, frozenset())


OWN = PROFILE.deploy.driver_key
NO_KEYS = ("no-prefix", "example.com/", "/x", "example.com/a=b", "example.com/a b", "kubernetes.io/hostname")


@pytest.mark.parametrize("key", [*NO_KEYS, OWN])
def test_a_further_label_that_is_none_is_a_configuration_error(key: str) -> None:
    assert profiles.may_pause(key) == (key == OWN)
    with pytest.raises(ConfigError, match="is not the key of a label that may be paused"):
        _with_last_label(PROFILE, key)


def test_clients_are_restarted_by_a_run_that_loads_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def after_run(_: ClientRestarter, pods: Any, __: Any) -> ClientTurn:
        asked.append((loader, pods))
        return ClientTurn()

    monkeypatch.setattr(ClientRestarter, "after_run", after_run)
    of_run = {"clock": FakeClock(), "log": None, "cluster": None, "profile": PROFILE, "roots": roots_of(tmp_path)}
    for loader in Loader:
        restart_clients(cast("Session", SimpleNamespace(**of_run)), Policy(loader=loader), ())
    assert asked == [(Loader.MANAGER, ())]
