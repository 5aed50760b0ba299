"""The parts of the cluster tier's harness that need no server: its kill sweep, its faults, its tools, its follower."""

from __future__ import annotations

import fcntl
import os
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import urllib3

from driver_manager.profiles import builtin
from driver_manager.sandbox.host import HostTree
from tests.support.control_plane.api import Follower, Watch, wait_until
from tests.support.control_plane.faults import ApiRequest, CutLine, Drop, Exchange, Fault, Script
from tests.support.control_plane.runner import JOURNAL, NEW_ROOT, lighten
from tests.support.control_plane.sweep.effects import Surroundings, effect_of
from tests.support.control_plane.sweep.scene import Effect, Place, recorded, uncovered
from tests.support.control_plane.sweep.sweeping import Outcome, judge
from tests.support.fakes.pace import patient

AROUND = Surroundings(host="/h", container="/c", own="/c/tmp")
WRITE, READ = os.O_WRONLY | os.O_CREAT, os.O_RDONLY


@pytest.mark.parametrize(
    ("event", "args", "effect"),
    [
        ("open", ("/h/run/x", "r", READ), ""),
        ("open", ("/h/run/x", None, WRITE), "write /run/x"),
        ("open", ("/h/run/x", "r+", os.O_RDWR), "write /run/x"),
        ("open", ("/h/run/.x.0123456789ab", None, WRITE), "write /run/.x.*"),
        ("open", ("/c/termination-log", None, WRITE), "write (container)/termination-log"),
        ("open", ("/c/tmp/ca", None, WRITE), ""),
        ("open", ("/dev/null", "rb+", os.O_RDWR), ""),
        ("open", ("/etc/passwd", "w", WRITE), "write /etc/passwd"),
        ("open", (7, "rb", READ), ""),
        ("open", (".x.0123456789ab", None, WRITE), "write .x.*"),
        ("open", ("a.lock", None, os.O_CREAT), ""),
        ("open", ("a.lock", None, WRITE), "write a.lock"),
        ("os.rename", ("/h/run/.x.0123456789ab", "/h/run/x", -1, -1), "rename /run/.x.*"),
        ("os.remove", ("/h/nothing/here", -1), ""),
        ("os.mkdir", ("/", 0o777, -1), ""),
        ("os.mkdir", ("/h/new", 0o777, -1), "mkdir /new"),
        ("os.link", ("/h/a", "/h/b", -1, -1), "link /a"),
        ("os.kill", (123, 9), "os.kill (123, 9)"),
        ("os.system", (b"true",), "system true"),
        ("os.fork", (), ""),
        ("fcntl.fcntl", (7, fcntl.F_GETPIPE_SZ, None), ""),
        ("fcntl.fcntl", (7, fcntl.F_SETFL, 2048), f"fcntl.fcntl (7, {fcntl.F_SETFL}, 2048)"),
        ("subprocess.Popen", ("rmmod", ["rmmod", "rebellions"], None, None), "run rmmod rebellions"),
        ("subprocess.Popen", ("x", ["/sbin/umount", "--", "/h/run/d"], None, None), "run umount -- /run/d"),
        ("subprocess.Popen", ("x", ["modinfo", "/h/a.ko"], None, None), ""),
        ("subprocess.Popen", ("x", ["modprobe", "--dump-modversions", "/h/a.ko"], None, None), ""),
        ("subprocess.Popen", ("x", ["a-new-tool"], None, None), "run a-new-tool"),
        ("ctypes.dlsym", ("libudev", "udev_new"), ""),
        ("ctypes.dlsym", ("libc", "umount2"), "ctypes.dlsym umount2"),
        ("import", ("json", None, None, None, None), ""),
        ("an.event.of.tomorrow", (1, 2), "an.event.of.tomorrow (1, 2)"),
    ],
)
def test_what_is_not_known_to_change_nothing_is_an_effect(event: str, args: tuple[Any, ...], effect: str) -> None:
    assert effect_of(event, args, AROUND) == effect


def test_a_name_in_an_open_folder_and_the_name_of_an_open_file_are_found(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")
    (tmp_path / "folder").mkdir()
    folder = os.open(tmp_path, os.O_PATH)
    around = replace(AROUND, host=str(tmp_path))
    try:
        assert effect_of("os.remove", ("there", folder), around) == "remove /there"
        assert effect_of("os.remove", ("gone", folder), around) == ""
        assert effect_of("os.rmdir", ("there", folder), around) == "", "a file is no folder"
        assert effect_of("os.rmdir", ("folder", folder), around) == "rmdir /folder"
        assert effect_of("os.rename", (".there.0123456789ab", "there", folder, folder), around) == "rename /.there.*"
        with (tmp_path / "there").open() as file:
            assert effect_of("os.chmod", (file.fileno(), 0o644, -1), around) == "chmod /there"
        with (tmp_path / ".x.0123456789ab").open("w") as file:
            assert effect_of("os.chmod", (file.fileno(), 0o644, -1), around) == "", "it has no name yet"
    finally:
        os.close(folder)


EVICTION = "/api/v1/namespaces/team/pods/p/eviction"


def test_both_sides_are_in_the_order_of_time_and_what_only_asks_counts_but_is_no_effect() -> None:
    asked: list[tuple[float, str, str, Any]] = [
        (1.0, "GET", "/api/v1/nodes/n", None),
        (2.0, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", None),
        (3.0, "POST", EVICTION, {"deleteOptions": {"dryRun": ["All"]}}),
        (5.0, "POST", EVICTION, {"deleteOptions": {"preconditions": {"uid": "u"}}}),
    ]
    exchanges = [Exchange(0, ApiRequest(method, path, body=body), at_s) for at_s, method, path, body in asked]
    assert recorded(exchanges, [(4.0, "write /a"), (6.0, "write /b")]) == (
        Effect(Place.HOST, "write /a", 0),
        Effect(Place.API, "create pods/eviction", 2),
        Effect(Place.HOST, "write /b", 1),
    )


def test_an_effect_that_was_not_recorded_is_reported() -> None:
    one, two, new = (Effect(Place.HOST, name, number) for name, number in (("a", 0), ("b", 1), ("new", 1)))
    assert uncovered((one, two), ()) == ""
    assert uncovered((one, two), (one, two)) == ""
    assert "there was host: new" in uncovered((one, two), (one, new))
    assert "host: b" in uncovered((one,), (one, two))


NODE: dict[str, Any] = {"labels": {"a": "true"}, "annotations": {}, "is_cordoned": False, "shown": ("ready", 0)}
HOST: dict[str, Any] = {"modules": {"rebellions": "2.0.1"}, "files": {"/run/state": "new"}, "mounts": ""}
HOST |= {"devices": {"0000:c1:00.0": "driver rebellions, override "}, "services": ()}
PODS: dict[str, Any] = {"jobs": ("gone",), "bystander": "Running", "evicted": {"u": 1}, "restarts": {"exporter": (1,)}}
SOUND = Outcome(code=0, without_event=(), interrupted=0, **NODE, **HOST, **PODS)
CORDONED = replace(SOUND, is_cordoned=True)


def found(wanted: Outcome, got: Outcome, uncovered: str = "", edits: Mapping[str, str] | None = None) -> list[str]:
    lost = judge(wanted, got, edits=edits or {}, uncovered=uncovered, pods=frozenset({"u"}))
    return [name for name, lines in lost.items() if lines]


@pytest.mark.parametrize(
    ("wanted", "got", "name"),
    [
        (SOUND, replace(SOUND, labels={}), "lost labels"),
        (SOUND, replace(SOUND, labels={"a": "paused"}), "lost labels"),
        (SOUND, replace(SOUND, labels={"a": "true", "b": "true"}), "lost labels"),
        (CORDONED, SOUND, "lost cordons"),
        (SOUND, CORDONED, "leaked cordons"),
        (SOUND, replace(SOUND, annotations={JOURNAL: "{}"}), "leftover journals"),
        (SOUND, replace(SOUND, annotations={"x": "y"}), "leftover annotations"),
        (SOUND, replace(SOUND, shown=("upgrading", 0)), "wrong states"),
        (SOUND, replace(SOUND, shown=("ready", 5)), "wrong states"),
        (SOUND, replace(SOUND, modules={}), "wrong drivers"),
        (SOUND, replace(SOUND, devices={"0000:c1:00.0": "driver , override vfio-pci"}), "wrong drivers"),
        (SOUND, replace(SOUND, files={"/run/state": "old"}), "wrong drivers"),
        (SOUND, replace(SOUND, mounts="/run/driver"), "wrong drivers"),
        (SOUND, replace(SOUND, services=("a.service",)), "wrong drivers"),
        (SOUND, replace(SOUND, evicted={"u": 2}), "wrong evictions"),
        (SOUND, replace(SOUND, evicted={"other": 1}), "wrong evictions"),
        (SOUND, replace(SOUND, bystander="gone"), "wrong evictions"),
        (SOUND, replace(SOUND, jobs=("Running",)), "wrong evictions"),
        (SOUND, replace(SOUND, restarts={"exporter": (0,)}), "wrong restarts"),
        (SOUND, replace(SOUND, restarts={"exporter": (2,)}), "wrong restarts"),
        (SOUND, replace(SOUND, restarts={"exporter": (2, 1)}), "wrong restarts"),
        (SOUND, replace(SOUND, restarts={"exporter": (1, 0)}), "wrong restarts"),
        (SOUND, replace(SOUND, without_event=("exporter-x",)), "wrong restarts"),
        (SOUND, replace(SOUND, code=5), "wrong exit codes"),
    ],
)
def test_each_judge_finds_its_own_and_nothing_else(wanted: Outcome, got: Outcome, name: str) -> None:
    assert found(wanted, wanted) == []
    assert found(wanted, got) == [name]


def test_an_edit_wins_an_uncovered_effect_is_a_failure_and_a_client_may_be_restarted_in_each_boot() -> None:
    assert found(SOUND, SOUND, edits={"a": "false"}) == ["lost labels"]
    assert found(SOUND, replace(SOUND, labels={"a": "false"}), edits={"a": "false"}) == []
    assert found(SOUND, SOUND, uncovered="host: new") == ["uncovered effects"]
    for restarts in ((0, 1), (1, 1)):
        assert found(SOUND, replace(SOUND, restarts={"exporter": restarts})) == []


def test_a_fault_that_could_not_act_is_for_the_next_match_and_counts_from_when_it_was_added() -> None:
    watch, get = ApiRequest("GET", "/api/v1/pods", {"watch": "1"}), ApiRequest("GET", "/api/v1/nodes/n")
    script = Script([Fault(CutLine())])
    (taken,) = script.take(watch)
    assert script.take(watch) == []
    script.give_back(taken)
    script.add(Fault(Drop(), nth=2))
    assert script.take(watch) == [taken]
    assert script.fired(taken.fault) == 0
    script.fire(taken)
    assert script.fired(taken.fault) == 1
    assert [armed.fault.action for armed in script.take(get)] == [Drop()]


def test_the_light_tools_say_what_the_sandboxs_say(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host", tmp_path / "bin", builtin()["rebellions"])
    tree.build()
    tree.add_driver(NEW_ROOT, "2.0.1")
    root = tree.root / NEW_ROOT.lstrip("/")
    modules = [str(next(root.rglob(f"{name}.ko"))) for name in ("rebellions", "rebellions_core")]
    depends = ("modprobe", "--show-depends", "--dirname", str(root), "--set-version", "6.1.0-sandbox", "--")

    def run(*argv: str) -> tuple[int, str, str]:
        path = f"{tree.bin}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(argv, env={"PATH": path}, capture_output=True, text=True, timeout=150, check=False)
        return done.returncode, done.stdout, done.stderr

    asked = (*(("modinfo", path) for path in (*modules, "/absent")), (*depends, "absent"))
    itself = [run(*argv) for argv in asked]
    lighten(tree)
    assert [run(*argv) for argv in asked] == itself
    assert [status for status, _, _ in itself] == [0, 0, 1, 1]
    assert run(*depends, "rebellions") == (0, "", "")


def test_an_error_of_what_sees_the_events_ends_the_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    response, api = Mock(), Mock()
    response.stream.return_value = [b'{"type": "ADDED", "object": {}}\n']
    api.get.return_value = {"items": [], "metadata": {"resourceVersion": "1"}}
    api.watch.side_effect = lambda *_, **__: Watch(response)
    with Follower(api, "/api/v1/pods", Mock(side_effect=urllib3.exceptions.HTTPError)):
        wait_until(lambda: raised, "the end of the follower", patient(10.0))
