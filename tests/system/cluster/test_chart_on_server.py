"""The chart on the real API server, by Helm itself: installed, upgraded, uninstalled."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.releasing.chart import CHART
from scripts.releasing.kustomize import Json, only, render
from tests.support.control_plane.api import Api
from tests.support.control_plane.servers import ControlPlane
from tests.support.deploy.apply import apply, path_of
from tests.support.deploy.helm import Helm, HelmError, started
from tests.support.deploy.meaning import canonical

NVIDIA = "gpu-operator"
VALUES: Json = {"vendor": "nvidia", "networkPolicy": {"enabled": True}, "resourceQuota": {"enabled": True}}


@pytest.fixture(scope="module")
def helm() -> Iterator[Helm]:
    """Helm's own code."""
    with started() as running:
        yield running


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    """The chart for a server that is older than the chart asks for."""
    shutil.copytree(CHART, tmp_path / "driver-manager")
    file = tmp_path / "driver-manager/Chart.yaml"
    text = file.read_text()
    assert 'kubeVersion: ">=1.22.0-0"' in text
    file.write_text(text.replace('kubeVersion: ">=1.22.0-0"\n', ""))
    return tmp_path / "driver-manager"


def spec_of(kept: Json, wanted: Json) -> Json:
    """What the server keeps of the fields that are wanted."""

    def shared(have: object, want: object) -> object:
        if isinstance(have, dict) and isinstance(want, dict):
            return {key: shared(have.get(key), inner) for key, inner in want.items()}
        if isinstance(have, list) and isinstance(want, list) and len(have) == len(want):
            return [shared(*pair) for pair in zip(have, want, strict=True)]
        return have

    return {key: shared(canonical(kept.get(key)), canonical(inner)) for key, inner in wanted.items()}


def test_it_is_installed_upgraded_and_uninstalled_and_the_namespace_stays(
    helm: Helm, chart: Path, control_plane: ControlPlane, admin_api: Api
) -> None:
    kubeconfig = control_plane.kubeconfig(control_plane.admin.token)
    apply(admin_api, only(render("nvidia/namespace"), "Namespace"))
    with pytest.raises(HelmError, match=r"chart requires kubeVersion: >=1\.22\.0-0"):
        helm.act("install", VALUES, CHART, kubeconfig, NVIDIA)

    helm.act("install", VALUES, chart, kubeconfig, NVIDIA)
    wanted = render("nvidia", "network-policy", "resource-quota")
    for one in wanted:
        kept = admin_api.get(path_of(one))
        assert spec_of(kept, one) == canonical(one), one["metadata"]["name"]
        assert kept["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    before = {path_of(one): admin_api.get(path_of(one))["metadata"] for one in wanted}

    new = {**VALUES, "driver": {"configDigest": "sample-2.0.2"}}
    helm.act("upgrade", new, chart, kubeconfig, NVIDIA)
    after = {path: admin_api.get(path)["metadata"] for path in before}
    changed = [path for path, one in after.items() if one.get("generation") != before[path].get("generation")]
    daemon_set = only(wanted, "DaemonSet")
    assert changed == [path_of(daemon_set)], "only the pod template has changed"
    template = admin_api.get(path_of(daemon_set))["spec"]["template"]
    assert template["metadata"]["annotations"]["driver-config-digest"] == "sample-2.0.2"

    helm.act("uninstall", {}, chart, kubeconfig, NVIDIA)
    assert not [path for path in before if admin_api.answers(path)]
    assert admin_api.get(f"/api/v1/namespaces/{NVIDIA}")["status"]["phase"] == "Active"
    assert admin_api.answers(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition()}")


def definition() -> str:
    """The name of the definition that Helm installs and never removes."""
    return str(only(render("nvidia/rollout"), "CustomResourceDefinition")["metadata"]["name"])
