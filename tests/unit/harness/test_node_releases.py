"""The node tier runs with each release of Kubernetes: what is chosen by version, by --help and by discovery."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.node.measured import Timeline
from tests.support.node.releases import Release, known, kubelet_flags, kubelet_settings, policy_of

SOCKET = "/run/containerd.sock"
ENDPOINT = "unix:///run/containerd.sock"
FLAG = f"--container-runtime-endpoint={ENDPOINT}"
DOCKERSHIM = ["--container-runtime=remote", "--network-plugin=cni"]


@pytest.mark.parametrize(
    ("text", "flags", "settings"),
    [
        ("Kubernetes v1.20.2\n", [FLAG, *DOCKERSHIM], {}),
        ("Kubernetes v1.24.0\n", [FLAG], {}),
        ("Kubernetes v1.27.16\n", [], {"containerRuntimeEndpoint": ENDPOINT}),
        ("Kubernetes v1.36.0-rc.1\n", [], {"containerRuntimeEndpoint": ENDPOINT, "failCgroupV1": False}),
    ],
)
def test_a_kubelet_is_told_of_its_runtime_as_its_release_reads_it(
    text: str, flags: list[str], settings: dict[str, Any]
) -> None:
    release = Release.parse(text)
    assert (kubelet_flags(release, SOCKET), kubelet_settings(release, SOCKET)) == (flags, settings)


def test_a_release_is_ordered_by_its_numbers_and_shown_as_people_write_it() -> None:
    assert Release.parse("Kubernetes v1.9.11") < Release.parse("Kubernetes v1.20.2")
    assert str(Release.parse("Kubernetes v1.20.2-dirty")) == "1.20.2"
    with pytest.raises(ValueError, match="no version"):
        Release.parse("unknown flag: --version")


HELP = {
    "1.20": "      --bind-address ip    The IP address for the --secure-port\n      --port int    DEPRECATED\n",
    "1.36": "      --bind-address ip    The IP address for the --secure-port\n      --secure-port int    not --port\n",
}


@pytest.mark.parametrize(("release", "flags"), [("1.20", ["--port=0"]), ("1.36", [])])
def test_a_flag_is_given_only_to_a_program_whose_help_names_it(release: str, flags: list[str]) -> None:
    assert known(HELP[release], "--port=0") == flags


@pytest.mark.parametrize(
    ("served", "policy"),
    [
        (["policy/v1beta1"], "policy/v1beta1"),
        (["policy/v1", "policy/v1beta1"], "policy/v1"),
        (["policy/v1"], "policy/v1"),
    ],
    ids=["1.20", "1.24", "1.36"],
)
def test_budgets_and_evictions_are_of_the_newest_version_that_the_server_has(served: list[str], policy: str) -> None:
    assert policy_of({"kind": "APIGroup", "versions": [{"groupVersion": one} for one in served]}) == policy


def test_a_watch_that_ends_with_a_status_leaves_no_pod_behind() -> None:
    pod = {"metadata": {"uid": "u"}, "status": {"reason": "NodeAffinity"}}
    ended = {"kind": "Status", "metadata": {}, "code": 410, "reason": "Expired"}
    timeline = Timeline(SimpleNamespace())  # type: ignore[arg-type]
    timeline._watch = [("MODIFIED", pod), ("ERROR", ended)]  # type: ignore[assignment]
    timeline._read_pods()
    assert timeline.refused("NodeAffinity") == {"u": pod}
    assert timeline._gone("other") == 0.0
