"""The host as the rebooter sees it: marker and record on disk, evidence, the reboot command, sysrq."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host import reboot as host_reboot
from driver_manager.adapters.host.evidence import EVIDENCE_CHARS, EVIDENCE_KEPT
from driver_manager.adapters.host.files import HostFiles, HostRoots, WorkLock
from driver_manager.adapters.host.holders import in_host
from driver_manager.adapters.host.reboot import HostRebooter
from driver_manager.adapters.host.system import read_host
from driver_manager.adapters.process.tools import Result
from driver_manager.domain.errors import ConfigError, Conflict, ModuleFailed
from driver_manager.domain.host import Marker, encode_marker
from driver_manager.domain.profile import NodeMaker
from driver_manager.domain.reboot.state import Attempt, Pending, RebootAnswer, RebootRequest, Record, RecordUnreadable
from driver_manager.sandbox.host import HostTree
from tests.support.fakes.builders import ASCEND
from tests.support.fakes.clock import FakeClock

PATHS = ASCEND.paths
ROOT = "/var/lib/Ascend/driver"


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    """A host with the old driver's tree and no driver loaded."""
    made = HostTree(tmp_path / "host", tmp_path / "bin", ASCEND)
    made.build()
    made.add_driver(ROOT, "25.5.0")
    return made


def host(tree: HostTree, *command: str) -> HostRebooter:
    roots = HostRoots(tree.root, tree.root / "proc", tree.root / "sys", tree.root / "dev")
    return HostRebooter(roots, ASCEND, FakeClock(), command or ("true",))


def put(tree: HostTree, path: str, content: str | bytes) -> Path:
    target = tree.root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content.encode() if isinstance(content, str) else content)
    return target


def test_one_look_tells_boot_uptime_and_marker(tree: HostTree) -> None:
    put(tree, "/proc/uptime", "123.45 600.00\n")
    look = host(tree).look()
    assert (look.boot_id, look.uptime_s, look.marker, look.marker_problem) == (tree.boot_id, 123.45, None, "")
    marker = Marker("recovery", tree.boot_id, evidence=("wedged",))
    put(tree, PATHS.reboot_marker, encode_marker(marker))
    assert host(tree).look().marker == marker


@pytest.mark.parametrize("text", ["", "soon", "1e", "\xff", "inf", "nan", "-5"])
def test_a_host_without_an_uptime_is_an_error_with_its_path(tree: HostTree, text: str) -> None:
    put(tree, "/proc/uptime", text)
    with pytest.raises(ConfigError, match="uptime"):
        host(tree).look()


def test_a_marker_of_100_mb_is_not_read_and_is_a_problem(tree: HostTree) -> None:
    target = put(tree, PATHS.reboot_marker, "")
    os.truncate(target, 100 * 1024 * 1024)
    look = host(tree).look()
    assert look.marker is None
    assert "cannot be read" in look.marker_problem


def test_a_pipe_in_the_markers_place_is_a_problem_and_not_waited_for(tree: HostTree) -> None:
    target = put(tree, PATHS.reboot_marker, "")
    target.unlink()
    os.mkfifo(target)
    assert "not a regular file" in host(tree).look().marker_problem
    target.unlink()


def test_a_symlink_in_the_way_is_not_followed_out_of_the_host(tree: HostTree, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tree.root / "var/lib/ascend").symlink_to(outside)
    host(tree).keep(Record(reason="here"))
    assert list(outside.iterdir()) == []
    assert host(tree).record() == Record(reason="here")


def test_the_record_is_kept_and_read_again(tree: HostTree) -> None:
    assert host(tree).record() == Record()
    record = Record(attempts=(Attempt(1, "upgrade"),), reason="waits")
    host(tree).keep(record)
    assert host(tree).record() == record
    put(tree, PATHS.rebooter_record, "garbage")
    with pytest.raises(RecordUnreadable):
        host(tree).record()
    (tree.root / PATHS.rebooter_record.lstrip("/")).unlink()
    (tree.root / PATHS.rebooter_record.lstrip("/")).mkdir()
    with pytest.raises(RecordUnreadable, match="cannot read"):
        host(tree).record()


def test_a_record_that_another_process_has_replaced_is_not_overwritten(tree: HostTree) -> None:
    seen, theirs = Record(reason="waits"), Record(pending=Pending(RebootRequest("boot-1", "upgrade"), "uid", 100))
    host(tree).keep(seen, Record())
    host(tree).keep(theirs, seen)
    with pytest.raises(Conflict, match="another process has replaced"):
        host(tree).keep(Record(), seen)
    assert host(tree).record() == theirs
    (tree.root / PATHS.rebooter_record.lstrip("/")).unlink()
    with pytest.raises(Conflict):
        host(tree).keep(seen, theirs)


def test_a_run_reads_from_the_rebooters_record_which_reboot_was_granted(tree: HostTree) -> None:
    roots = HostRoots(tree.root, tree.root / "proc", tree.root / "sys", tree.root / "dev")
    noted = Pending(RebootRequest(tree.boot_id, "upgrade"), "uid", 100)
    cases = [
        (noted, "upgrade"),
        (replace(noted, started_s=0), ""),
        (replace(noted, request=RebootRequest("boot-0", "upgrade")), ""),
        (None, ""),
    ]
    assert read_host(roots, ASCEND, "", None, loads=False).granted_reboot == ""
    for pending, reason in cases:
        host(tree).keep(Record(pending=pending))
        assert read_host(roots, ASCEND, "", None, loads=False).granted_reboot == reason
    put(tree, PATHS.rebooter_record, "garbage")
    assert read_host(roots, ASCEND, "", None, loads=False).granted_reboot is None


def raises(error: Exception) -> Callable[..., None]:
    """A function that raises `error`."""

    def refuse(*_: object) -> None:
        raise error

    return refuse


def test_a_marker_is_removed_and_one_that_cannot_be_is_named(tree: HostTree, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Marker("upgrade", "")
    target = put(tree, PATHS.reboot_marker, "upgrade")
    host(tree).remove_marker(seen)
    assert not target.exists()
    host(tree).remove_marker(seen)
    put(tree, PATHS.reboot_marker, "upgrade")
    monkeypatch.setattr(HostFiles, "remove", raises(OSError(30, "Read-only file system")))
    with pytest.raises(ModuleFailed, match="reboot-required"):
        host(tree).remove_marker(seen)


def test_a_marker_written_meanwhile_stays(tree: HostTree) -> None:
    fresh = Marker("recovery", tree.boot_id)
    target = put(tree, PATHS.reboot_marker, encode_marker(fresh))
    host(tree).remove_marker(Marker("recovery", "an earlier boot"))
    assert host(tree).look().marker == fresh
    host(tree).remove_marker(fresh)
    assert not target.exists()


def test_no_marker_is_removed_while_somebody_works_on_the_driver(tree: HostTree) -> None:
    seen = Marker("recovery", "an earlier boot")
    target = put(tree, PATHS.reboot_marker, encode_marker(seen))
    lock = WorkLock(HostFiles(tree.root, tree.root / "proc"), PATHS.work_lock)
    with lock.working(FakeClock(), 1.0), pytest.raises(ModuleFailed, match="another run is working on the driver"):
        host(tree).remove_marker(seen)
    assert target.exists()
    host(tree).remove_marker(seen)
    assert not target.exists()


def test_the_driver_is_ready_once_it_is_loaded_and_has_made_its_device(tree: HostTree) -> None:
    assert "is not loaded" in host(tree).why_not_ready()
    tree.load(ROOT)
    (tree.root / "dev/davinci0").unlink(missing_ok=True)
    assert "not created a device node" in host(tree).why_not_ready()
    roots = HostRoots(tree.root, tree.root / "proc", tree.root / "sys", tree.root / "dev")
    by_a_tool = replace(ASCEND, paths=replace(PATHS, device_nodes_made_by=NodeMaker.USER_SPACE))
    assert HostRebooter(roots, by_a_tool, FakeClock(), ()).why_not_ready() == "", "nobody may have run it yet"
    put(tree, "/dev/davinci0", "")
    assert host(tree).why_not_ready() == ""
    marked = replace(ASCEND, paths=replace(PATHS, ready_marker="/run/ready"))
    assert "ready marker /run/ready" in HostRebooter(roots, marked, FakeClock(), ()).why_not_ready()


def test_evidence_has_the_probes_last_words_the_holders_and_the_kernels(tree: HostTree) -> None:
    put(tree, "/dev/kmsg", b"6,1,5,-;chip is wedged\n SUBSYSTEM=pci\n")
    host(tree).save_evidence("1700000000-recovery", ("npu-smi: ret=4",))
    saved = tree.root / PATHS.reboot_evidence.lstrip("/") / "1700000000-recovery.txt"
    text = saved.read_text()
    assert "npu-smi: ret=4" in text
    assert "chip is wedged" in text
    assert "processes that use the device:" in text
    assert saved.stat().st_mode & 0o777 == 0o600


def test_evidence_that_no_encoding_has_is_saved_as_far_as_it_can_be(tree: HostTree) -> None:
    put(tree, PATHS.reboot_marker, encode_marker(Marker("recovery", tree.boot_id, evidence=("ret=4 \udcff",))))
    marker = host(tree).look().marker
    assert marker is not None
    host(tree).save_evidence("1-recovery", marker.evidence)
    assert "ret=4 ?" in (tree.root / PATHS.reboot_evidence.lstrip("/") / "1-recovery.txt").read_text()


def test_evidence_without_a_kernel_log_says_why(tree: HostTree) -> None:
    host(tree).save_evidence("1-upgrade", ())
    text = (tree.root / PATHS.reboot_evidence.lstrip("/") / "1-upgrade.txt").read_text()
    assert "cannot be read: No such file" in text


def test_evidence_is_bounded_in_size_and_number(tree: HostTree) -> None:
    for number in range(EVIDENCE_KEPT + 4):
        host(tree).save_evidence(f"{998 + number}-upgrade", ("x" * 10_000,) * 60)
    folder = tree.root / PATHS.reboot_evidence.lstrip("/")
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == EVIDENCE_KEPT
    assert "998-upgrade.txt" not in names
    assert "1009-upgrade.txt" in names
    assert all(path.stat().st_size <= EVIDENCE_CHARS + 1 for path in folder.iterdir())


def test_the_reboot_command_is_run_as_words_and_what_fails_is_said(tree: HostTree, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    assert host(tree, "touch", str(ran)).reboot() == RebootAnswer()
    assert ran.exists()
    assert "not found" in host(tree, "no-such-command").reboot().problem
    assert host(tree, "false").reboot().problem != ""


def test_a_reboot_command_that_hangs_is_left_after_its_time(tree: HostTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_reboot, "COMMAND_TIMEOUT_S", 0.2)
    answer = host(tree, "sleep", "60").reboot()
    assert "timed out after" in answer.problem
    assert not answer.is_refused


@pytest.mark.parametrize(("script", "refused"), [("exit 1", True), ("exit 126", True), ("kill -9 $$", False)])
def test_a_command_that_ends_with_a_status_was_refused_and_one_that_was_killed_may_have_told(
    tree: HostTree, script: str, refused: bool
) -> None:
    answer = host(tree, "sh", "-c", script).reboot()
    assert answer.problem
    assert answer.is_refused is refused


def test_namespaces_that_cannot_be_entered_are_named_before_a_reboot_is_granted(
    tree: HostTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("mnt", "pid", "net", "ipc", "uts"):
        put(tree, f"/proc/1/ns/{kind}", "")
    answers = {
        "nsenter: reassociate to namespace 'ns/pid' failed: Invalid argument": "needs hostPID",
        "nsenter: failed to execute true: No such file or directory": "",
    }
    put(tree, "/usr/bin/true", "")
    for said, expected in answers.items():
        monkeypatch.setattr(host_reboot, "run", lambda *_, said=said, **__: Result(1, "", said))
        found = host(tree).why_no_way_in()
        assert expected in found
        assert bool(found) is bool(expected)


@pytest.mark.parametrize(
    ("program", "at", "said"),
    [
        ("systemctl", "/usr/bin/systemctl", ""),
        ("systemctl", "/run/current-system/sw/bin/systemctl", ""),
        ("/sbin/reboot", "/sbin/reboot", ""),
        ("systemctl", "/usr/bin/other", "the host has no systemctl to reboot with: set REBOOT_COMMAND"),
        ("/sbin/reboot", "/usr/bin/reboot", "the host has no /sbin/reboot to reboot with"),
    ],
)
def test_a_host_without_the_program_is_named_before_a_reboot_is_granted(
    tree: HostTree, monkeypatch: pytest.MonkeyPatch, program: str, at: str, said: str
) -> None:
    for kind in ("mnt", "pid", "net", "ipc", "uts"):
        put(tree, f"/proc/1/ns/{kind}", "")
    put(tree, at, "")
    monkeypatch.setattr(host_reboot, "run", lambda *_, **__: Result(0, "", ""))
    found = host(tree, program, "reboot").why_no_way_in()
    assert bool(found) is bool(said)
    assert said in found


def test_a_program_that_the_host_turns_out_not_to_have_is_named_as_such(
    tree: HostTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, str] = {}

    def run(_: list[str], *, env: dict[str, str], **__: object) -> Result:
        given.update(env)
        return Result(127, "", "nsenter: failed to execute systemctl: No such file or directory")

    monkeypatch.setattr(host_reboot, "run", run)
    answer = host(tree, "systemctl", "reboot").reboot()
    assert (answer.is_refused, "the host has no systemctl" in answer.problem) == (True, True)
    assert "/run/current-system/sw/bin" in given["PATH"].split(":"), "looked for where hosts keep their programs"


def test_a_host_whose_namespaces_are_ours_needs_no_way_in(tree: HostTree) -> None:
    assert host(tree).why_no_way_in() == ""


def test_the_reboot_command_runs_in_all_namespaces_of_the_host(tree: HostTree, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("mnt", "pid", "net", "ipc", "uts"):
        put(tree, f"/proc/1/ns/{kind}", "")
    ran: list[list[str]] = []

    def run(argv: list[str], **_: object) -> Result:
        ran.append(argv)
        return Result(0, "", "")

    monkeypatch.setattr(host_reboot, "run", run)
    assert host(tree, "systemctl", "reboot").reboot() == RebootAnswer()
    (argv,) = ran
    assert (argv[0], argv[-3:]) == ("nsenter", ["--", "systemctl", "reboot"])
    assert {option.partition("=")[0] for option in argv[1:-3]} == {"--mount", "--pid", "--net", "--ipc", "--uts"}


def test_where_the_hosts_first_process_is_in_our_namespaces_none_is_entered(tmp_path: Path) -> None:
    (tmp_path / "1").symlink_to("/proc/self")
    assert in_host(tmp_path) == []


def test_sysrq_syncs_remounts_and_reboots_in_this_order(tree: HostTree) -> None:
    trigger = put(tree, "/proc/sysrq-trigger", "")
    written: list[str] = []
    clock = FakeClock()
    roots = HostRoots(tree.root, tree.root / "proc", tree.root / "sys", tree.root / "dev")
    rebooter = HostRebooter(roots, ASCEND, clock, ())
    for second in (1, 3, 5):
        clock.after(second, lambda: written.append(trigger.read_text()))
    rebooter.force_reboot()
    assert written == ["s", "u", "b"]


def test_sysrq_that_cannot_be_written_is_an_error_with_its_path(tree: HostTree) -> None:
    with pytest.raises(ModuleFailed, match="sysrq-trigger"):
        host(tree).force_reboot()


def test_the_hosts_machine_id_is_read_and_none_is_no_error(tree: HostTree) -> None:
    assert len(host(tree).machine_id()) == 32
    (tree.root / "etc/machine-id").unlink()
    assert host(tree).machine_id() == ""


def test_what_is_recorded_is_one_line_of_json(tree: HostTree) -> None:
    host(tree).keep(Record(reason="waits"))
    (line,) = (tree.root / PATHS.rebooter_record.lstrip("/")).read_text().splitlines()
    assert json.loads(line)["schema"] == 1
