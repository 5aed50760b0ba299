"""What the tiers say of themselves as programs, how long the node tier waits, and what it does for each release."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fakes import pace
from tests.support.node import place as patience
from tests.support.node.measured import Timeline
from tests.support.node.releases import Release, known, kubelet_flags, kubelet_settings, policy_of
from tests.support.tiers import TierError, answer, skip_or_fail


def failing() -> str:
    raise TierError("no mirror")


@pytest.mark.parametrize(
    ("option", "lacking", "prepare", "ends"),
    [
        ("--check", [], failing, (0, "x tier: can run\n")),
        (
            "--check",
            ["runc (Debian package runc)", "root"],
            failing,
            (1, "x tier: missing runc (Debian package runc); root\n"),
        ),
        ("--prepare", ["root"], failing, (1, "x tier: missing root\n")),
        ("--prepare", [], lambda: "a.tar", (0, "x tier: a.tar\n")),
        ("--prepare", [], failing, (1, "x tier: no mirror\n")),
    ],
)
def test_a_tier_says_what_it_lacks_and_what_it_made(
    option: str,
    lacking: list[str],
    prepare: Callable[[], str],
    ends: tuple[int, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["tier", option])
    assert (answer("x", lacking, prepare), capsys.readouterr().out) == ends


def test_what_a_test_needs_skips_it_and_fails_it_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for ci, outcome in (("", pytest.skip.Exception), ("true", pytest.fail.Exception)):
        monkeypatch.setenv("CI", ci)
        with pytest.raises(outcome, match="no cpio"):
            skip_or_fail("no cpio")


def slower(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    monkeypatch.setattr(patience, "patient", lambda seconds: seconds * times)


def test_a_bound_is_that_of_an_idle_machine_times_its_slowness(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter([0, 0, 0, 3])
    slower(monkeypatch, 1e12)
    assert patience.wait_until(lambda: next(asked), "three", 1e-9, every_s=0.0) == 3
    slower(monkeypatch, 1.0)
    with pytest.raises(AssertionError, match=r"of an idle machine\): never"):
        patience.wait_until(lambda: None, "never", 1e-9, every_s=0.0)


def test_what_ends_in_time_does_not_measure_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "patient", lambda _: pytest.fail("measured"))
    assert patience.wait_until(lambda: "now", "now", 60.0) == "now"
    assert patience.run(["cat"], "given", 60.0).stdout == "given"


def test_a_command_is_killed_where_it_does_not_end_in_time_on_this_machine_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slower(monkeypatch, 2.0)
    with pytest.raises(subprocess.TimeoutExpired):
        patience.run(["sleep", "3600"], "", 0.01)
    assert patience.run(["sh", "-c", "cat; exit 3"], "x" * 100_000, 60.0).returncode == 3


@pytest.mark.parametrize(("starts", "ratio"), [((0.1, 0.5, 0.9), 1.0), ((1.0, 5.0, 2.0), 5.0)])
def test_the_slowest_start_tells_the_pace(
    monkeypatch: pytest.MonkeyPatch, starts: tuple[float, ...], ratio: float
) -> None:
    left = iter(starts)
    monkeypatch.setattr(pace, "floor_s", lambda: next(left) * pace.NOMINAL_S)
    assert pace.patient(2.0) == pytest.approx(2.0 * ratio)


# Releases of Kubernetes.

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
