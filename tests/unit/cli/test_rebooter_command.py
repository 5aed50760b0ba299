"""`rebooter` as a process on the sandbox: options, idleness, locks, signals; and `status` beside it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager.adapters.process.clock import SystemClock
from driver_manager.cli.rebooter_idle import become_command
from driver_manager.domain.errors import ExitCode, Terminated
from driver_manager.domain.host import Marker, encode_marker
from driver_manager.domain.reboot.state import Attempt, Record
from driver_manager.domain.reboot.state import encode_reboot_record as encode_record
from driver_manager.sandbox.cluster import NODE
from driver_manager.sandbox.host import HostTree
from tests.support.control_plane.api import wait_until
from tests.support.fakes.builders import ASCEND
from tests.support.fakes.pace import patient
from tests.support.fakes.sandboxed import ByHand, by_hand
from tests.support.fakes.typed import Prompt, called, slow

ROOT = "/var/lib/Ascend/driver"
REPOSITORY = Path(__file__).parents[3]
TIMEOUT_S = 100.0


class Node:
    """A sandbox node and the environment of a rebooter on it."""

    def __init__(self, hand: ByHand) -> None:
        self.tree, self.cluster, self.folder = hand.tree, hand.cluster, hand.tree.root.parent
        self.started: list[subprocess.Popen[str]] = []
        self.marker, self.record = map(self.path, (ASCEND.paths.reboot_marker, ASCEND.paths.rebooter_record))
        known = {"REBOOTER_INTERVAL": "0.05s", "DRIVER_CONFIG_DIGEST": "wanted", "PYTHONPATH": str(REPOSITORY)}
        self.env = hand.environment(NODE_NAME=NODE, LOG_FORMAT="json", **known)

    def path(self, path: str) -> Path:
        target = self.tree.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def mark(self, **fields: str) -> None:
        marker = Marker(**{"reason": "upgrade", "boot_id": self.tree.boot_id, "node": NODE, **fields})  # type: ignore[arg-type]  # fields of a Marker
        self.marker.write_text(encode_marker(marker))

    def spoil_folder(self) -> None:
        """A file is in the place of the folder of marker and record."""
        self.record.parent.rmdir()
        self.record.parent.write_text("a file")

    def remember_nothing(self) -> None:
        """A rebooter was here before, and nothing is under way."""
        self.record.write_text(encode_record(Record()))

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "driver_manager", "rebooter", *arguments]
        self.started.append(subprocess.Popen(argv, env={**self.env, **env}, stderr=subprocess.PIPE, text=True))
        return self.started[-1]

    def start_idle(self, **env: str) -> subprocess.Popen[str]:
        """One that is idle by now."""
        process = self.start(**env)
        wait_until(lambda: is_lean(process), "it is idle")
        return process

    def end(self) -> None:
        """Kill what is left running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def status(self, *arguments: str, **env: str) -> str:
        done = called({**self.env, **env}, "status", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def asked(self) -> list[str]:
        """Verb and resource of all requests so far."""
        return [f"{record.verb} {record.resource}" for record in list(self.cluster.server.requests)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """An Ascend node with its driver loaded."""

    def loaded(tree: HostTree) -> None:
        tree.add_driver(ROOT, "25.2.0")
        tree.load(ROOT)

    with by_hand(tmp_path, loaded, "ascend") as hand:
        running = Node(hand)
        yield running
        running.end()


def is_lean(process: subprocess.Popen[str]) -> bool:
    return b"rebooter_idle" in Path(f"/proc/{process.pid}/cmdline").read_bytes()


def looks_again(process: subprocess.Popen[str], times: int) -> None:
    """Wait until an idle process has slept `times` times more, as it does between two looks (proc(5))."""

    def slept() -> int:
        status = Path(f"/proc/{process.pid}/status").read_text()
        return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    before = slept()
    wait_until(lambda: slept() >= before + times, f"{times} looks")


def ended(process: subprocess.Popen[str]) -> list[str]:
    """SIGTERM; the messages of its log. It has to end within a second, and well."""
    began_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == ExitCode.DONE, err
    assert time.monotonic() - began_s < patient(1.0)
    return [json.loads(line)["message"] for line in err.splitlines()]


@pytest.mark.submission
def test_without_a_marker_it_is_lean_asks_nothing_and_ends_within_a_second(node: Node) -> None:
    node.remember_nothing()
    process = node.start_idle()
    looks_again(process, 10)
    assert node.asked() == []
    watched = f"watching {ASCEND.paths.reboot_marker} every 0.05 s: no reboot is asked for"
    assert ended(process) == [watched, "terminated by SIGTERM"]


@pytest.mark.submission
@pytest.mark.parametrize("is_asked", [False, True])
def test_each_look_and_each_check_of_a_reboot_puts_off_when_it_counts_as_hung(node: Node, is_asked: bool) -> None:
    alive = node.folder / "alive"
    node.remember_nothing()
    if is_asked:
        node.mark()
    process = (node.start if is_asked else node.start_idle)(ALIVE_FILE=str(alive))
    wait_until(alive.exists, "the first beat")
    patience_s = 4200.0 if is_asked else 60.0
    for _ in range(2):
        os.utime(alive, (0.0, 0.0))
        wait_until(lambda: alive.stat().st_mtime > 0, "the next beat")
    assert alive.stat().st_mtime - time.time() == pytest.approx(patience_s, abs=patient(5.0))
    ended(process)


def test_what_it_records_is_published_for_a_collector(node: Node) -> None:
    textfile = node.folder / "rebooter.prom"
    node.mark(reason="recovery")
    process = node.start(METRICS_TEXTFILE=str(textfile))
    asked = re.compile(r'^driver_manager_reboot_requested_timestamp_seconds\{reason="recovery"\} [1-9]', re.MULTILINE)
    wait_until(lambda: textfile.exists() and bool(asked.search(textfile.read_text())), "the request is published")
    assert 'driver_manager_reboots_total{reason="recovery"} 0.0' in textfile.read_text()
    node.marker.unlink()
    wait_until(lambda: not asked.search(textfile.read_text()), "its end is published")
    ended(process)


@slow
def test_where_no_rebooter_has_been_it_asks_once_and_never_again(node: Node) -> None:
    for _ in range(2):
        ended(node.start_idle())
        assert node.record.exists()
        assert node.asked() == ["get nodes"]


@slow
@pytest.mark.parametrize("while_idle", [False, True], ids=["over-the-reboot", "while-idle"])
def test_a_disk_that_forgets_leaves_no_slot_and_no_cordon_behind(node: Node, while_idle: bool) -> None:
    node.mark()
    node.start(AUTO_UPGRADE="true", REBOOT_CORDON="true")
    wait_until(lambda: node.tree.is_reboot_requested, "the command is given")
    node.end()
    node.marker.unlink()
    node.record.unlink()
    node.tree.reboot()
    node.cluster.new_boot()
    node.tree.load(ROOT)
    if while_idle:
        node.remember_nothing()
        process = node.start_idle()
        node.record.unlink()
    else:
        process = node.start()
    wait_until(lambda: "unschedulable" not in node.cluster.node()["spec"], "the cordon is lifted")
    wait_until(lambda: is_lean(process), "it is idle")
    assert not node.cluster.node()["metadata"].get("annotations")
    assert not node.cluster.store.get("leases", "driver-manager-reboots", "npu-operator")["spec"].get("holderIdentity")
    ended(process)


@slow
@pytest.mark.parametrize("text", ["garbage", "x" * 200_000])
def test_a_file_that_is_no_marker_is_reported_once_and_keeps_it_idle(node: Node, text: str) -> None:
    node.remember_nothing()
    node.marker.write_text(text)
    process = node.start_idle()
    looks_again(process, 6)
    assert is_lean(process)
    begin, line, end = ended(process)
    assert (begin[:9], "cannot be read" in line, end, node.asked()) == ("watching ", True, "terminated by SIGTERM", [])


def test_sigterm_on_the_way_to_being_idle_is_not_lost(node: Node) -> None:
    process = node.start()

    def catches_sigterm() -> bool:
        """Whether it has a handler for SIGTERM by now (proc(5), SigCgt)."""
        caught = Path(f"/proc/{process.pid}/status").read_text().partition("SigCgt:")[2].split()[0]
        return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)

    wait_until(catches_sigterm, "it takes signals")
    assert not is_lean(process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == ExitCode.DONE, err


def test_sigterm_on_the_way_from_being_idle_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    clock._signal = "SIGTERM"
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("the signal is forgotten"))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with pytest.raises(Terminated):
            become_command(["rebooter"], clock)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.mark.submission
def test_it_comes_and_goes_with_the_marker(node: Node) -> None:
    process = node.start_idle()
    node.mark()
    wait_until(lambda: "create events" in node.asked(), "the request is announced")
    assert not is_lean(process)
    node.marker.unlink()
    wait_until(lambda: is_lean(process), "it is idle again")
    assert ASCEND.keys.reboot_required not in node.cluster.node()["metadata"]["labels"]
    assert any("withdraw the request" in message for message in ended(process))


def test_a_dry_run_changes_nothing(node: Node) -> None:
    node.mark()
    process = node.start("--dry-run", AUTO_UPGRADE="true")
    wait_until(lambda: node.asked().count("get leases") > 1, "it has looked at the slots, and logged it")
    assert any("dry run: would take a slot" in message for message in ended(process))
    assert {asked.split()[0] for asked in node.asked()} == {"get"}
    assert not node.record.exists()


@slow
def test_a_second_rebooter_on_the_host_waits_for_the_first(node: Node) -> None:
    node.mark()
    with node.path(ASCEND.paths.rebooter_record + ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = node.start(AUTO_UPGRADE="true")
        assert process.stderr is not None
        assert "another rebooter is running" in process.stderr.readline()
        assert not node.tree.is_reboot_requested
    wait_until(lambda: node.tree.is_reboot_requested, "it goes on when the first is gone")


@pytest.mark.submission
def test_sigterm_after_the_reboot_command_keeps_the_slot(node: Node) -> None:
    node.mark()
    process = node.start(AUTO_UPGRADE="true", REBOOT_COMMAND="true")
    wait_until(lambda: "patch leases" in node.asked() or "create leases" in node.asked(), "it has a slot")
    wait_until(lambda: '"given": true' in node.record.read_text(), "it has rebooted")
    ended(process)
    # The command was given: the host may go down at any moment, and the slot stays.
    assert node.cluster.store.get("leases", "driver-manager-reboots", "npu-operator")["spec"]["holderIdentity"] == NODE


def test_bad_options_are_usage_errors_at_the_start(node: Node, monkeypatch: pytest.MonkeyPatch, prompt: Prompt) -> None:
    for name, value in node.env.items():
        monkeypatch.setenv(name, value)
    no_reboots = str(REPOSITORY / "deploy/profiles-unverified/metax.toml")
    for env, expected in (
        ({"REBOOT_WINDOWS": "sometimes"}, "'sometimes' is not a maintenance window"),
        ({"REBOOT_TIME_ZONE": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"REBOOT_TIME_ZONE": "../../etc/passwd"}, "no time zone"),
        ({"REBOOT_COMMAND": "'unclosed"}, "REBOOT_COMMAND cannot be split"),
        ({"REBOOT_COMMAND": " "}, "REBOOT_COMMAND is empty"),
        ({"MAX_CONCURRENT_REBOOTS": "0"}, "--max-concurrent-reboots"),
        ({"REBOOT_MIN_UPTIME": "soon"}, "Invalid value for REBOOT_MIN_UPTIME"),
        ({"REBOOT_BLOCKING_PODS": "a in b"}, "REBOOT_BLOCKING_PODS is not a label selector"),
        ({"WAIT_FOR_COMPLETION_SELECTOR": "="}, "WAIT_FOR_COMPLETION_SELECTOR is not a label selector"),
        ({"AUTO_RECOVER": "restart"}, "Write steps out of reset, reload, reboot"),
        ({"KUBECONFIG": "/absent"}, "cannot connect to the cluster with /absent"),
        ({"NODE_NAME": "Not A Node"}, "is not the name of a node"),
        ({"REBOOTER_INTERVAL": "0"}, "--interval is 0 seconds"),
        ({"PROFILE_FILE": no_reboots, "DRIVER_PROFILE": "metax"}, "profile metax never asks for a reboot"),
    ):
        with monkeypatch.context() as changed:
            for name, value in env.items():
                changed.setenv(name, value)
            assert expected in prompt.errors("rebooter"), env
    node.spoil_folder()
    assert "/var/lib/ascend" in prompt.errors("rebooter")


def test_a_marker_folder_that_cannot_be_written_ends_a_reconcile_with_its_path(node: Node) -> None:
    node.tree.record("old", ROOT, "25.2.0")
    node.spoil_folder()
    pod = {"POD_NAME": node.cluster.driver_pod(), "POD_NAMESPACE": node.cluster.namespace}
    done = called({**node.env, **pod}, "reconcile-driver-state", "--no-wait")
    assert (done.returncode, ASCEND.paths.reboot_marker in done.stderr) == (ExitCode.USAGE, True)
    assert ASCEND.keys.reboot_required not in node.cluster.node()["metadata"]["labels"]


def reboot_rows(node: Node) -> list[str]:
    """The rows of `status` about the reboot."""
    found = re.search(r"^reboot (.*\n)((?: .*\n)*)", node.status(), re.MULTILINE)
    return [row[10:] for row in found[0].splitlines()] if found else []


@slow
def test_status_shows_what_the_reboot_waits_for_and_how_often_it_was_tried(node: Node) -> None:
    assert reboot_rows(node) == []
    node.mark()
    assert reboot_rows(node) == ["not announced on the Node yet", "no rebooter has read the marker yet"]
    node.start()
    wait_until(node.record.exists, "it has looked")
    wait_until(lambda: "waits for approval" in node.record.read_text(), "it waits")
    state, waits = reboot_rows(node)
    assert state == "required"
    assert waits.startswith("waits for approval: annotate the Node with npu.openfuyao.com/approve-reboot=true")
    node.end()
    at_s = int(time.time()) - 60
    node.record.write_text(encode_record(Record(attempts=(Attempt(5, "upgrade"), Attempt(at_s, "upgrade")))))
    assert reboot_rows(node)[-1].startswith("1 attempt(s) within 24 h, the last at 20")
    body = json.loads(node.status("-o", "json"))
    assert (body["reboot"]["attempts"], body["reboot"]["lastAttempt"]) == (1, at_s)
    assert json.loads(node.status("-o", "json", REBOOT_ATTEMPTS_WINDOW="30s"))["reboot"]["attempts"] == 0
    node.record.write_text("garbage")
    assert "the rebooter's record cannot be read" in reboot_rows(node)[-1]
