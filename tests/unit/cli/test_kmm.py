"""What KMM is to load comes from the options; what cannot be is refused in one line with exit code 2."""

from __future__ import annotations

import pytest

from driver_manager.cli.main import run
from driver_manager.domain import kmm
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.kmm import KmmModule

GOOD = {"DRIVER_LOAD": "kmm", "KMM_MODULE": "kube-amd-gpu/amdgpu", "KMM_VERSION": "6.3.1"}


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """No option from the environment of the tests."""
    for name in (*GOOD, "FORCE_REINSTALL", "SAFE_LOAD", "ENABLE_AUTO_DRAIN", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_the_keys_are_those_of_kmm() -> None:
    """docs/mkdocs/documentation/ordered_upgrade.md of kubernetes-sigs/kernel-module-management."""
    module = kmm.parse("kube-amd-gpu/amdgpu", "6.3.1")
    assert module == KmmModule("kube-amd-gpu", "amdgpu", "6.3.1")
    assert module.asked_key == "kmm.node.kubernetes.io/version-module.kube-amd-gpu.amdgpu"
    assert module.worker_key == "beta.kmm.node.kubernetes.io/version-worker-pod.kube-amd-gpu.amdgpu"
    assert module.ready_key == "kmm.node.kubernetes.io/kube-amd-gpu.amdgpu.version.ready"


@pytest.mark.parametrize(
    "module", ["", "amdgpu", "/amdgpu", "kube/", "a/b/c", "Kube/amdgpu", "kube/amd.gpu", f"{'a' * 20}/{'b' * 20}"]
)
def test_what_is_no_module_is_refused(module: str) -> None:
    with pytest.raises(ConfigError, match="KMM_MODULE is"):
        kmm.parse(module, "1")


@pytest.mark.parametrize("version", ["", "a b", "-1", "x" * 64, "1/2"])
def test_what_no_label_can_hold_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match="KMM_VERSION is"):
        kmm.parse(f"{'a' * 19}/{'b' * 20}", version)


@pytest.mark.parametrize(
    ("asked", "workers", "ready", "is_ready", "is_changing", "has_not_begun", "may_load_another"),
    [
        ("", "", "", False, False, False, False),
        ("1", "1", "1", False, False, False, True),
        ("2", "", "", False, True, False, False),
        ("2", "2", "", False, True, False, False),
        ("2", "1", "1", False, True, False, True),
        ("2", "", "1", False, True, False, True),
        ("2", "", "2", False, True, False, False),
        ("1", "2", "2", False, True, True, False),
        ("1", "", "2", False, True, False, False),
        ("", "2", "2", False, True, True, False),
        ("2", "2", "2", True, False, True, False),
    ],
)
def test_the_labels_tell(  # a row of the table
    asked: str,
    workers: str,
    ready: str,
    is_ready: bool,
    is_changing: bool,
    has_not_begun: bool,
    may_load_another: bool,
) -> None:
    module = KmmModule("ns", "npu", "2")
    shown = {module.asked_key: asked, module.worker_key: workers, module.ready_key: ready}
    labels = {key: value for key, value in shown.items() if value}
    assert module.is_asked(labels) is (asked == "2")
    assert (module.is_ready(labels), module.is_changing(labels)) == (is_ready, is_changing)
    assert (module.has_not_begun(labels), module.may_load_another(labels)) == (has_not_begun, may_load_another)


@pytest.mark.parametrize(
    ("command", "env", "said"),
    [
        ("reconcile-driver-state", {"KMM_MODULE": ""}, "KMM_MODULE is ''"),
        ("reconcile-driver-state", {"KMM_VERSION": ""}, "KMM_VERSION is ''"),
        ("plan", {"FORCE_REINSTALL": "true"}, "FORCE_REINSTALL cannot be used with DRIVER_LOAD=kmm"),
        ("plan", {"SAFE_LOAD": "true"}, "SAFE_LOAD cannot be used with DRIVER_LOAD=kmm: the operator cordons"),
        ("plan", {"ENABLE_AUTO_DRAIN": "true"}, "ENABLE_AUTO_DRAIN cannot be used with DRIVER_LOAD=kmm: a drain"),
    ],
)
def test_a_combination_without_sense_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command: str,
    env: dict[str, str],
    said: str,
) -> None:
    for name, value in {**GOOD, **env, "LOG_FORMAT": "text"}.items():
        monkeypatch.setenv(name, value)
    assert run([command]) == 2
    assert said in capfd.readouterr().err
