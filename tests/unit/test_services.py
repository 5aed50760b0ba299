"""Host services are seen by their cgroup and moved by systemctl among the host's own mounts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters import services
from driver_manager.adapters.commands import Result
from driver_manager.adapters.namespaces import in_host_mounts
from driver_manager.domain.errors import ModuleFailed

UNIT = "rbln_daemon.service"


@pytest.mark.parametrize(
    ("folder", "answer"),
    [
        (f"fs/cgroup/system.slice/{UNIT}", (UNIT,)),
        (f"fs/cgroup/systemd/system.slice/{UNIT}", (UNIT,)),
        (f"fs/cgroup/user.slice/{UNIT}", ()),
        (f"fs/cgroup/system.slice/x-{UNIT}", ()),
        ("fs", ()),
    ],
)
def test_a_service_runs_while_its_cgroup_is_there(tmp_path: Path, folder: str, answer: tuple[str, ...]) -> None:
    (tmp_path / folder).mkdir(parents=True)
    assert services.active(tmp_path, (UNIT, "other.service")) == answer


def test_a_file_in_the_cgroups_place_and_no_cgroups_at_all_are_no_service(tmp_path: Path) -> None:
    assert services.active(tmp_path, (UNIT,)) == ()
    (tmp_path / "fs/cgroup/system.slice").mkdir(parents=True)
    (tmp_path / "fs/cgroup/system.slice" / UNIT).touch()
    assert services.active(tmp_path, (UNIT,)) == ()


def test_services_keep_the_profiles_order(tmp_path: Path) -> None:
    for name in ("a.service", "b.service"):
        (tmp_path / "fs/cgroup/system.slice" / name).mkdir(parents=True)
    assert services.active(tmp_path, ("b.service", "gone.service", "a.service")) == ("b.service", "a.service")


def systemctl(monkeypatch: pytest.MonkeyPatch, result: Result) -> list[list[str]]:
    ran: list[list[str]] = []

    def run(argv: Sequence[str], **_: Any) -> Result:
        ran.append(list(argv))
        return result

    monkeypatch.setattr(services, "run", run)
    return ran


@pytest.mark.parametrize("verb", ["stop", "start"])
def test_a_name_that_looks_like_an_option_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str) -> None:
    ran = systemctl(monkeypatch, Result(0, "", ""))
    getattr(services, verb)(tmp_path, "--force")
    assert ran == [["systemctl", verb, "--", "--force"]]


@pytest.mark.parametrize("verb", ["stop", "start"])
def test_a_failure_names_service_and_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str) -> None:
    systemctl(monkeypatch, Result(5, "", "Unit not loaded.\n"))
    with pytest.raises(ModuleFailed, match=f"cannot {verb} host service {UNIT}: Unit not loaded") as caught:
        getattr(services, verb)(tmp_path, UNIT)
    assert f"systemctl {verb} {UNIT}" in caught.value.remedy


# the host's mounts


def test_another_mount_namespace_is_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1/ns").mkdir(parents=True)
    (tmp_path / "1/ns/mnt").touch()
    enter = ["nsenter", f"--mount={tmp_path}/1/ns/mnt", "--"]
    assert in_host_mounts(tmp_path) == enter
    ran = systemctl(monkeypatch, Result(0, "", ""))
    services.stop(tmp_path, UNIT)
    assert ran == [[*enter, "systemctl", "stop", "--", UNIT]]


def test_our_own_mount_namespace_is_not_entered_again(tmp_path: Path) -> None:
    (tmp_path / "1/ns").mkdir(parents=True)
    (tmp_path / "1/ns/mnt").symlink_to("/proc/self/ns/mnt")
    assert in_host_mounts(tmp_path) == []


def test_without_the_hosts_proc_nothing_is_entered(tmp_path: Path) -> None:
    assert in_host_mounts(tmp_path) == []
