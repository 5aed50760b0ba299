"""The pure parts of the cluster tier's kill sweep: what counts as an effect, what is covered, what each judge finds."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from driver_manager.profiles import builtin
from driver_manager.sandbox.host import HostTree
from tests.support.control_plane.faults import ApiRequest, Exchange
from tests.support.control_plane.runner import JOURNAL, NEW_ROOT, lighten
from tests.support.control_plane.sweep.effects import Surroundings, effect_of
from tests.support.control_plane.sweep.scene import Effect, Place, recorded, uncovered
from tests.support.control_plane.sweep.sweeping import Outcome, judge

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


@pytest.mark.parametrize(
    ("argv", "effect"), [([], ""), (["/bin/sleep", "60"], "os.kill ({pid}, 9)")], ids=["a copy of us", "a tool"]
)
def test_the_end_of_our_own_copy_is_no_effect_and_that_of_a_tool_is(argv: list[str], effect: str) -> None:
    pid = os.fork()
    if pid == 0:
        if argv:
            os.execv(argv[0], argv)  # noqa: S606  # a tool in the place of the copy
        signal.pause()
    words = b"".join(os.fsencode(word) + b"\0" for word in argv) or Path("/proc/self/cmdline").read_bytes()
    try:
        while Path(f"/proc/{pid}/cmdline").read_bytes() != words:  # none at all while it becomes the tool
            pass
        assert effect_of("os.kill", (pid, 9), AROUND) == effect.format(pid=pid)
        assert effect_of("os.killpg", (pid, 9), AROUND) == effect.format(pid=pid).replace("kill", "killpg")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        ended = [effect_of(event, (pid, 9), AROUND) for event in ("os.kill", "os.killpg")]
        os.waitpid(pid, 0)
    assert ended == ["", ""], "nothing is left to be changed"


THREE_WRITES = """
import os, sys
from driver_manager.adapters.process.forked import lines_within
from tests.support.control_plane.sweep.effects import Recorder, Surroundings

def write(name):
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT))
    return [name]

host, kill_at, after = sys.argv[1:]
own = f"{host}-own"
recorder = Recorder(Surroundings(host, own, own), f"{own}/effects", int(kill_at), after=bool(after))
sys.addaudithook(recorder)
write(f"{host}/a")
lines_within(60.0, lambda: write(f"{host}/b"))
write(f"{host}/c")
recorder.end()
"""
"""The second of its writes is done by a copy of the process, which closes whatever it has inherited."""


@pytest.mark.parametrize(
    ("kill_at", "after", "done"),
    [(-1, "", "abc"), (0, "yes", "a"), (1, "", "a"), (1, "yes", "ab"), (2, "", "ab"), (2, "yes", "abc")],
)
def test_what_a_copy_of_the_process_does_is_an_effect_and_both_die_there(
    tmp_path: Path, kill_at: int, after: str, done: str
) -> None:
    host, own = tmp_path / "host", tmp_path / "host-own"
    host.mkdir()
    own.mkdir()
    argv = [sys.executable, "-c", THREE_WRITES, str(host), str(kill_at), after]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == (0 if kill_at < 0 else -signal.SIGKILL), ended.stderr
    assert "".join(sorted(path.name for path in host.iterdir())) == done
    noted = [json.loads(line)[1] for line in (own / "effects").read_text().splitlines()]
    assert noted == [f"write /{name}" for name in done]


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


def exchange(at_s: float, method: str, path: str, body: Any = None) -> Exchange:
    return Exchange(0, ApiRequest(method, path, body=body), at_s)


EVICTION = "/api/v1/namespaces/team/pods/p/eviction"


def test_both_sides_are_in_the_order_of_time_and_what_only_asks_counts_but_is_no_effect() -> None:
    exchanges = [
        exchange(1.0, "GET", "/api/v1/nodes/n"),
        exchange(2.0, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
        exchange(3.0, "POST", EVICTION, {"deleteOptions": {"dryRun": ["All"]}}),
        exchange(5.0, "POST", EVICTION, {"deleteOptions": {"preconditions": {"uid": "u"}}}),
    ]
    assert recorded(exchanges, [(4.0, "write /a"), (6.0, "write /b")]) == (
        Effect(Place.HOST, "write /a", 0),
        Effect(Place.API, "create pods/eviction", 2),
        Effect(Place.HOST, "write /b", 1),
    )


def test_an_effect_that_was_not_recorded_is_said() -> None:
    one, two, new = (Effect(Place.HOST, name, number) for name, number in (("a", 0), ("b", 1), ("new", 1)))
    assert uncovered((one, two), ()) == ""
    assert uncovered((one, two), (one, two)) == ""
    assert "there was host: new" in uncovered((one, two), (one, new))
    assert "host: b" in uncovered((one,), (one, two))


SOUND = Outcome(
    code=0,
    labels={"a": "true"},
    annotations={},
    is_cordoned=False,
    modules={"rebellions": "2.0.1"},
    devices={"0000:c1:00.0": "driver rebellions, override "},
    files={"/run/state": "new"},
    mounts="",
    services=(),
    jobs=("gone",),
    bystander="Running",
    evicted={"u": 1},
    restarts={"exporter": (1,)},
    untold=(),
    interrupted=0,
    shown=("ready", 0),
)
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
        (SOUND, replace(SOUND, untold=("exporter-x",)), "wrong restarts"),
        (SOUND, replace(SOUND, code=5), "wrong exit codes"),
    ],
)
def test_each_judge_finds_its_own_and_nothing_else(wanted: Outcome, got: Outcome, name: str) -> None:
    assert found(wanted, wanted) == []
    assert found(wanted, got) == [name]


def test_an_administrators_edit_wins_and_an_uncovered_effect_is_a_failure() -> None:
    assert found(SOUND, SOUND, edits={"a": "false"}) == ["lost labels"]
    assert found(SOUND, replace(SOUND, labels={"a": "false"}), edits={"a": "false"}) == []
    assert found(SOUND, SOUND, uncovered="host: new") == ["uncovered effects"]


def test_a_client_is_restarted_once_for_the_driver_of_each_boot() -> None:
    for restarts in ((0, 1), (1, 1)):
        assert found(SOUND, replace(SOUND, restarts={"exporter": restarts})) == []


def said(tree: HostTree, *argv: str) -> tuple[int, str, str]:
    path = f"{tree.bin}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(argv, env={"PATH": path}, capture_output=True, text=True, timeout=150, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.submission
def test_the_light_tools_say_what_the_sandboxs_say(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host", tmp_path / "bin", builtin()["rebellions"])
    tree.build()
    tree.add_driver(NEW_ROOT, "2.0.1")
    root = tree.root / NEW_ROOT.lstrip("/")
    module = str(next(root.rglob("rebellions.ko")))
    core = module.replace("rebellions.ko", "rebellions_core.ko")
    depends = ("modprobe", "--show-depends", "--dirname", str(root), "--set-version", "6.1.0-sandbox", "--")
    asked = (
        *(("modinfo", path) for path in (module, core)),
        (*depends, "absent"),
        ("modprobe", "--dump-modversions", module),
        (str(root / "usr/bin/rbln-smi"), "-j"),
    )
    empty = [said(tree, *argv) for argv in asked]
    tree.load(NEW_ROOT)
    loaded = [said(tree, *argv) for argv in asked]
    lighten(tree)
    lighten(tree)
    assert [said(tree, *argv) for argv in asked] == loaded
    assert said(tree, *depends, "rebellions") == (0, "", "")
    assert said(tree, "modinfo", "/absent")[0] == 1
    assert said(tree, "rmmod", "rebellions")[0] == 0
    assert [said(tree, *argv) for argv in asked] == empty
    assert said(tree, "modprobe", "--dirname", str(root), "--set-version", "6.1.0-sandbox", "rebellions")[0] == 0
    assert tree.driver_version == "2.0.1"
    tree.add_driver(NEW_ROOT, "2.0.2", modules={"rebellions": ("rebellions_core", "rebellions_bus")})
    assert said(tree, "modinfo", module) == said(tree, "modinfo-itself", module)
