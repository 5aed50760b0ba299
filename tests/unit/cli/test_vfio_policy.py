"""What the operator's vfio-manager pod gives its init container becomes one policy, and every option has its place."""

from __future__ import annotations

import itertools

import click
import pytest
from click.testing import CliRunner

from driver_manager.cli.options import with_options
from driver_manager.cli.reconcile import policy_for
from driver_manager.domain import settings
from driver_manager.domain.observation import EvictionRules, Loader, Mode, Policy
from driver_manager.domain.settings import AnySetting, SettingKind, Values

OTHER = {
    SettingKind.FLAG: "true",
    SettingKind.DURATION: "7s",
    SettingKind.TEXT: "other",
    SettingKind.CHOICE: "container",
}
"""A value of each kind that is no default."""

ELSEWHERE = (settings.EVIDENCE_DIR, settings.DRIVER_LOAD)
"""One belongs to the host, and of the other only one value matters."""

PLAIN = Policy(mode=Mode.VFIO, driver_pod_leaves=True)


def told(**env: str) -> Policy:
    """The policy of reconcile-vfio-state with this environment."""
    found: list[Policy] = []

    @click.command()
    @with_options(settings.VFIO)
    def command(values: Values) -> None:
        found.append(policy_for(values, Mode.VFIO))

    CliRunner(env=env).invoke(command, [], catch_exceptions=False, standalone_mode=False)
    return found[0]


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No option from the environment of the tests."""
    for setting in settings.VFIO:
        for name in (setting.env, *setting.also):
            monkeypatch.delenv(name, raising=False)


def test_without_a_word_nobody_may_be_evicted_and_this_run_binds() -> None:
    assert told() == PLAIN


def test_the_operators_environment_evicts_and_loads_no_driver() -> None:
    found = told(
        ENABLE_NPU_POD_EVICTION="true",
        NPU_POD_EVICTION_FORCE="false",
        NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA="false",
        NPU_POD_EVICTION_DEVICE_CLASS="npu.rebellions.ai",
    )
    assert found.eviction == EvictionRules(is_enabled=True, device_classes=("npu.rebellions.ai",))
    assert (found.loader, found.force_reinstall, found.clear_for) == (Loader.CONTAINER, False, "")


def test_each_setting_changes_the_policy_in_a_way_of_its_own() -> None:
    known: tuple[AnySetting, ...] = tuple(one for one in settings.VFIO if one not in ELSEWHERE)
    told_by = {setting: told(**{setting.env: OTHER[setting.kind]}) for setting in known}
    assert [setting.env for setting, found in told_by.items() if found == PLAIN] == []
    assert [one.env for one, other in itertools.combinations(told_by, 2) if told_by[one] == told_by[other]] == []
