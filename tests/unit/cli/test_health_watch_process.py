"""`health-watch`, once and as a loop, with a stand-in npu-smi as a real process."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host.notes import load_text
from driver_manager.adapters.process import supervisor
from driver_manager.adapters.process.tools import this_process
from driver_manager.domain.baseline import Baseline, encode
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.health.watch import History, encode_watch_record
from driver_manager.domain.host import DeviceVerdict, Health
from tests.support.deploy.prometheus import free_port
from tests.support.fakes.ascend_tree import AscendTree
from tests.support.fakes.builders import PROFILES
from tests.support.fakes.host_documents import roots_of
from tests.support.fakes.host_folders import is_alive
from tests.support.fakes.npu_smi_tool import ADDRESSES
from tests.support.fakes.pace import patient
from tests.support.fakes.typed import Prompt, get, slow


@pytest.fixture(autouse=True)
def _quick(_bare: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERMINATION_LOG", str(tmp_path / "termination-log"))
    monkeypatch.setattr(supervisor, "TERM_S", 0.2)


@pytest.fixture
def tree(tmp_path: Path) -> AscendTree:
    return AscendTree(tmp_path)


def once(tree: AscendTree, prompt: Prompt, *more: str, timeout: str = "60s") -> dict[str, Any]:
    """What `--once -o json` prints; its exit code is checked to be the one it names."""
    code, out, _ = prompt("health-watch --once -o json", *tree.options, "--timeout", timeout, *more)
    body: dict[str, Any] = json.loads(out)
    assert body["exitCode"] == code
    return body


VERDICTS = {
    "healthy": ("healthy", "4 device(s) OK"),
    "critical": ("unhealthy", "npu 0 chip 0 is Critical"),
    "hang with children": ("unhealthy", "timed out after 0.5 s"),
    "crash": ("unhealthy", "exit status -11"),
    "busy": ("unknown", "-8020: device in use by another client"),
    "huge": ("unknown", "more than 256 KiB"),
}
"""By the tool's mood; the tests of the parsers and of running tools have the others."""

CODES = {"healthy": ExitCode.DONE, "unhealthy": ExitCode.MODULE_FAILED, "unknown": ExitCode.PREFLIGHT_FAILED}


@slow
@pytest.mark.parametrize("mood", VERDICTS)
def test_a_tool_gets_the_right_verdict(tree: AscendTree, prompt: Prompt, mood: str) -> None:
    tree.tool.be(mood)
    machine, reason = VERDICTS[mood]
    # A busy machine may take long to start a tool, so that only one that hangs has little time.
    body = once(tree, prompt, timeout="500ms" if reason.startswith("timed out") else "60s")
    assert (body["health"], body["exitCode"], reason in body["reason"]) == (machine, CODES[machine], True)
    assert (tree.is_ready, tree.marker) == (True, None), "a look changes nothing"


BAD_BEFORE = DeviceVerdict("npu 0 chip 0", Health.UNHEALTHY, "Critical", ADDRESSES[0])
LOADED = "1"
"""Stands for the load of the driver that runs now."""


@pytest.mark.parametrize(
    ("before", "mood", "health", "reason"),
    [
        (Baseline("boot-1", load="earlier", devices=(BAD_BEFORE,)), "critical", "healthy", "as before the swap"),
        (Baseline("boot-1", load=LOADED, devices=(BAD_BEFORE,)), "critical", "unhealthy", "Critical"),
        (Baseline("boot-0", load="earlier", devices=(BAD_BEFORE,)), "critical", "unhealthy", "Critical"),
        (Baseline("boot-1", load="earlier", served=("0000:ff:00.0",)), "healthy", "unhealthy", "0000:ff:00.0 is lost"),
    ],
)
def test_one_sample_is_compared_with_the_last_swap_as_the_loops_samples_are(
    tree: AscendTree, prompt: Prompt, before: Baseline, mood: str, health: str, reason: str
) -> None:
    profile = PROFILES["ascend"]
    load = load_text(roots_of(tree.root), profile.modules) if before.load == LOADED else before.load
    tree.put(profile.paths.baseline.lstrip("/"), encode(replace(before, load=load)))
    tree.tool.be(mood)
    body = once(tree, prompt)
    assert (body["health"], reason in body["reason"]) == (health, True)


def test_another_driver_root_can_be_named(tree: AscendTree, prompt: Prompt) -> None:
    (tree.root / "usr/local").mkdir(parents=True)
    (tree.root / "var/lib/Ascend").rename(tree.root / "usr/local/Ascend")
    tree.tool.path.unlink(missing_ok=True)
    assert once(tree, prompt)["health"] == "unknown"
    moved = tree.root / "usr/local/Ascend/driver/tools"
    for file in (moved / "npu-smi", moved / "mood"):
        file.write_text(file.read_text().replace("/var/lib/Ascend", "/usr/local/Ascend"))
    assert once(tree, prompt, "--driver-root", "/usr/local/Ascend/driver")["health"] == "healthy"


def test_a_tool_that_is_missing_or_a_link_in_circles_is_unknown(tree: AscendTree, prompt: Prompt) -> None:
    tree.tool.path.unlink()
    assert once(tree, prompt)["reason"] == "npu-smi is not in /var/lib/Ascend/driver"
    tree.tool.path.symlink_to("npu-smi")
    body = once(tree, prompt)
    assert (body["health"], "symbolic links" in body["reason"]) == ("unknown", True)


def test_people_get_text_with_a_line_per_device(tree: AscendTree, prompt: Prompt) -> None:
    tree.tool.be("critical")
    code, out, _ = prompt("health-watch --once", *tree.options)
    device = "  npu 0 chip 0 0000:c1:00.0: unhealthy (Critical)"
    assert (code, out.splitlines()[:2]) == (ExitCode.MODULE_FAILED, ["unhealthy: npu 0 chip 0 is Critical", device])


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--interval 0", "--interval is 0 seconds"),
        ("--metrics-textfile /no/such/folder/x.prom", "the folder of --metrics-textfile"),
        ("--timeout 0s", "--timeout is 0 seconds"),
        ("--failures 0", "0 is not in the range"),
        ("--failures many", "'many' is not a valid integer"),
        ("--interval soon", "'soon' is not a duration"),
        ("--metrics-addr nowhere", "'nowhere' is not an address such as :9400"),
        ("--metrics-addr :99999", "':99999' is not an address"),
        ("--profile none", "there is no profile 'none'"),
        ("EVIDENCE_DIR=evidence", "EVIDENCE_DIR is 'evidence', which is not a path on the host"),
        ("PROC_ROOT=/absent", "cannot read /absent/sys/kernel/random/boot_id"),
        ("", "the profile ascend has no probe"),
    ],
)
def test_a_bad_option_and_a_profile_without_a_probe_are_two_lines_and_exit_code_two(
    tree: AscendTree, prompt: Prompt, monkeypatch: pytest.MonkeyPatch, more: str, expected: str
) -> None:
    if not more:
        text = tree.profile.read_text()
        tree.profile.write_text(text[: text.index("[probe]")].replace('recovery = ["reboot"]\n', ""))
    elif not more.startswith("--"):
        monkeypatch.setenv(*more.split("="))
        more = ""
    code, _, err = prompt("health-watch --once", *tree.options, *more.split())
    what, remedy = (json.loads(line)["message"] for line in err.splitlines())
    assert (code, expected in what, remedy.startswith("what to do: ")) == (ExitCode.USAGE, True, True), what


def test_a_look_by_hand_leaves_a_stuck_probe_alone_too(tree: AscendTree, prompt: Prompt) -> None:
    left = this_process("")
    tree.put("run/ascend/health-watch.json", encode_watch_record(History(stuck=left), "boot-1"))
    body = once(tree, prompt)
    assert (body["health"], tree.tool.starts) == ("unhealthy", [])
    assert f"(process {left.pid}) is stuck in the kernel" in body["reason"]
    tree.put("run/ascend/health-watch.json", encode_watch_record(History(stuck=left), "boot-0"))
    assert once(tree, prompt)["health"] == "healthy"


BOUND_S = 100.0
INTERVAL = ("--interval", "50ms")


class Watch:
    """A running `health-watch`; its log is in a file."""

    def __init__(self, tree: AscendTree, log: Path, *options: str, env: Any = None, stderr: int | None = None) -> None:
        self.log = log
        argv = [sys.executable, "-m", "driver_manager", "health-watch", *tree.options, *options]
        environment = {"PATH": os.environ["PATH"], "TERMINATION_LOG": "/absent", **(env or {})}
        with self.log.open("w") as file:
            self.process = subprocess.Popen(argv, stderr=file if stderr is None else stderr, env=environment)
        self.tell = self.process.send_signal

    @property
    def lines(self) -> list[str]:
        """The messages so far."""
        return [json.loads(line)["message"] for line in self.log.read_text().splitlines() if line.endswith("}")]

    def says(self, text: str) -> None:
        """Wait until it has logged this."""
        wait_until(lambda: any(text in line for line in self.lines), lambda: f"{text!r} in {self.lines}")

    def end(self) -> tuple[int, float]:
        """SIGTERM; the exit status, and how many seconds it took."""
        begun = time.monotonic()
        self.tell(signal.SIGTERM)
        return self.process.wait(BOUND_S), time.monotonic() - begun


def wait_until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait for a condition; fails with `what` was waited for."""
    end = time.monotonic() + BOUND_S
    while not holds():
        assert time.monotonic() < end, what()
        time.sleep(0.01)


Start = Callable[..., Watch]


@pytest.fixture
def start(tree: AscendTree, tmp_path: Path) -> Iterator[Start]:
    started: list[Watch] = []

    def begin(*options: str, **more: Any) -> Watch:
        started.append(Watch(tree, tmp_path / f"log-{len(started)}", *options, **more))
        return started[-1]

    yield begin
    for watch in started:
        watch.process.kill()
        watch.process.wait(BOUND_S)
    for pid in tree.tool.starts:
        if is_alive(pid):
            os.killpg(pid, signal.SIGKILL)


@pytest.mark.submission
def test_a_wedge_is_declared_at_the_third_failure_with_evidence_and_withdrawn(tree: AscendTree, start: Start) -> None:
    tree.put("dev/kmsg", "6,1,5,-;davinci: heartbeat lost\n")
    tree.put("dev/davinci0", "")
    (tree.root / "proc/4711/fd").mkdir(parents=True)
    os.mkfifo(tree.root / "proc/4711/maps")  # a process that does not answer
    tree.tool.be("critical")
    watch = start(*INTERVAL, "--node-name", "node-1")
    watch.says("evidence is in /var/lib/driver-manager/evidence/")
    turns = [line.partition(":")[0] for line in watch.lines if "→" in line]
    assert turns == ["starting → suspect(1)", "suspect(1) → suspect(2)", "suspect(2) → wedged"]
    marker = tree.marker
    assert marker is not None
    assert not tree.is_ready
    written = (marker.reason, marker.writer, marker.boot_id, marker.node)
    assert written == ("recovery", "health-watch", "boot-1", "node-1")
    assert [line.split(" ", 1)[1] for line in marker.evidence] == ["unhealthy: npu 0 chip 0 is Critical"] * 3
    (file,) = (tree.root / "var/lib/driver-manager/evidence").iterdir()
    assert re.fullmatch(r"[0-9]+-ascend-wedge\.txt", file.name)
    text = file.read_text()
    seen = ("is Critical", "Critical      |", "davinci: heartbeat lost", "use the device:", "4711")
    assert [words for words in seen if words not in text] == []
    tree.tool.be("healthy")
    watch.says("done: restore the ready marker")
    assert (tree.is_ready, tree.marker, watch.end()[0]) == (True, None, 0)


@slow
@pytest.mark.parametrize("mood", ["healthy", "hang", "hang ignoring TERM"])
def test_sigterm_ends_watch_and_probe_in_a_second_without_a_change(tree: AscendTree, start: Start, mood: str) -> None:
    tree.tool.be("critical")
    watch = start(*INTERVAL)
    watch.says("done: write the recovery marker")
    tree.tool.be(mood)
    begun = len(tree.tool.starts)
    wait_until(lambda: len(tree.tool.starts) > begun, lambda: "the next probe")
    if mood == "healthy":
        watch.says("done: restore the ready marker")
    before = (tree.is_ready, tree.marker)
    status, took_s = watch.end()
    assert took_s < patient(1.0)
    assert (status, tree.is_ready, tree.marker) == (0, *before)
    assert "markers stay as they are" in watch.lines[-1]
    wait_until(lambda: not any(map(is_alive, tree.tool.starts)), lambda: "no probe is left")


@slow
def test_a_log_without_a_reader_delays_neither_samples_nor_the_end(tree: AscendTree, start: Start) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"x" * fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ))
    try:
        tree.tool.be("critical")
        watch = start(*INTERVAL, stderr=writer)
        wait_until(lambda: tree.marker is not None, lambda: "the wedge is declared")
        sampled = len(tree.tool.starts)
        wait_until(lambda: len(tree.tool.starts) > sampled, lambda: "the watch goes on")
        status, took_s = watch.end()
    finally:
        os.close(reader)
        os.close(writer)
    assert (status, tree.is_ready) == (0, False)
    assert took_s < patient(1.5)


@slow
@pytest.mark.parametrize(
    ("env", "expected", "count"),
    [
        ({"EVIDENCE_DIR": "off"}, "done: write the recovery marker", 0),
        ({"EVIDENCE_DIR": "/var/log/npu"}, "evidence is in /var/log/npu/", 1),
        ({}, "no evidence is kept: cannot write /var/lib/driver-manager/evidence/", 0),
    ],
    ids=["off", "another folder", "no folder"],
)
def test_evidence_is_kept_where_it_is_wanted(
    tree: AscendTree, start: Start, env: Any, expected: str, count: int
) -> None:
    tree.put("var/lib/driver-manager", "a file")
    tree.tool.be("critical")
    watch = start(*INTERVAL, env=env)
    watch.says(expected)
    tree.tool.be("healthy")
    watch.says("done: restore the ready marker")
    assert len(list(tree.root.rglob("*-ascend-wedge.txt"))) == count
    assert len([line for line in watch.lines if "no evidence" in line]) == (not env)


def test_sighup_reads_the_profile_again_and_forgets_nothing(tree: AscendTree, start: Start) -> None:
    tree.tool.be("critical")
    watch = start("--interval", "10s")
    watch.says("starting → suspect(1)")
    tree.write_profile(parser="exit-status")
    watch.tell(signal.SIGHUP)
    watch.says("continuing as suspect(1): npu 0 chip 0 is Critical")
    watch.says("suspect(1) → healthy: exit status 0")
    assert watch.process.poll() is None


def test_a_profile_that_is_no_good_at_sighup_keeps_the_old_one(tree: AscendTree, start: Start) -> None:
    watch = start(*INTERVAL)
    watch.says("starting → healthy")
    tree.profile.write_text("name = 1\n")
    watch.tell(signal.SIGHUP)
    watch.says("not reloaded, continuing as before")
    assert re.search("name is 1, expected letters, digits, dots and dashes.*Fix the file;", watch.lines[-1])
    tree.tool.be("critical")
    watch.says("suspect(2) → wedged")


@slow
def test_sighups_without_end_neither_kill_it_nor_keep_it_from_watching(tree: AscendTree, start: Start) -> None:
    port = free_port()
    watch = start(*INTERVAL, "--metrics-addr", f"127.0.0.1:{port}")
    watch.says("starting → healthy")
    tree.tool.be("critical")
    end = time.monotonic() + BOUND_S
    while not any("→ wedged" in line for line in watch.lines):
        assert time.monotonic() < end, watch.lines
        for _ in range(20):
            watch.tell(signal.SIGHUP)
            time.sleep(0.001)  # so that they do not all become one
        time.sleep(0.03)  # less than it takes to read the options again
    tree.write_profile(parser="exit-status")
    watch.tell(signal.SIGHUP)
    watch.says("healthy: exit status 0")
    assert (get(port, "/healthz")[0], watch.end()[0]) == (200, 0)


def test_one_thread_serves_metrics_with_one_library_while_a_probe_hangs(tree: AscendTree, start: Start) -> None:
    port = free_port()
    # On a busy machine the answer takes its time, and the probe has to hang until it is there.
    watch = start(*INTERVAL, "--timeout", f"{BOUND_S * 2:g}s", "--metrics-addr", f"127.0.0.1:{port}")
    watch.says("starting → healthy")
    for _ in range(20):
        status, text = get(port, "/metrics")
        assert status == 200
    assert 'driver_manager_health_state{state="healthy"} 1.0' in text
    assert 'driver_manager_device_health{device="npu 3 chip 0",health="healthy"} 1.0' in text
    assert get(port, "/nothing")[0] == 404
    process = Path(f"/proc/{watch.process.pid}")
    fields = dict(re.findall(r"^(\w+):\s+(\d+)", (process / "status").read_text(), re.MULTILINE))
    assert (fields["Threads"], int(fields["VmRSS"]) <= 16 * 1024) == ("1", True), fields["VmRSS"]
    libraries = set(re.findall(r"site-packages/(\w+)", (process / "maps").read_text()))
    assert libraries == {"msgspec"}, "no other library has a compiled part loaded"
    tree.tool.be("hang")
    begun = len(tree.tool.starts)
    wait_until(lambda: len(tree.tool.starts) > begun, lambda: "the probe that hangs")
    status, text = get(port, "/healthz")
    assert is_alive(tree.tool.starts[-1]), "the probe still hangs"
    assert (status, re.fullmatch(r"last turn \d+ s ago, healthy\n", text) is not None) == (200, True)
    watch.tell(signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError):
            get(port, "/healthz", 0.5)
    finally:
        watch.tell(signal.SIGCONT)
    assert get(port, "/healthz")[0] == 200, "only a hung loop does not answer"


def test_an_address_in_use_is_two_lines_and_exit_code_two(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        watch = start(*INTERVAL, "--metrics-addr", f"127.0.0.1:{taken.getsockname()[1]}")
        assert watch.process.wait(BOUND_S) == 2
    what, remedy = watch.lines
    assert ("cannot listen on" in what, remedy) == (True, "what to do: Choose another address.")


def test_each_turn_notifies_systemd_and_replaces_the_textfile(tree: AscendTree, start: Start, tmp_path: Path) -> None:
    textfile, address = tmp_path / "collector/npu.prom", str(tmp_path / "notify")
    textfile.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(BOUND_S)
        watch = start(*INTERVAL, "--metrics-textfile", str(textfile), env={"NOTIFY_SOCKET": address})
        for _ in range(2):
            lines = systemd.recv(4096).decode().split("\n")
            assert (lines[:2], lines[2][:14]) == (["READY=1", "WATCHDOG=1"], "STATUS=healthy")
        watch.says("starting → healthy")
        wait_until(textfile.exists, lambda: "the textfile")
        assert 'driver_manager_health_state{state="healthy"} 1.0\n' in textfile.read_text()
        tree.tool.be("busy")
        wait_until(lambda: 'samples_total{health="unknown"} 1.0' in textfile.read_text(), textfile.read_text)
    assert [path.name for path in textfile.parent.iterdir()] == ["npu.prom"]
