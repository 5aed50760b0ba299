"""The host as the rebooter sees it: marker and record on disk, evidence, the reboot command, sysrq."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host import reboot as host_reboot
from driver_manager.adapters.host.files import HostFiles, WorkLock
from driver_manager.adapters.host.reboot import HostRebooter
from driver_manager.adapters.host.system import read_host
from driver_manager.adapters.process.tools import Result
from driver_manager.domain.errors import ConfigError, Conflict, ModuleFailed
from driver_manager.domain.host import Marker, encode_marker
from driver_manager.domain.profile import NodeMaker, Profile
from driver_manager.domain.reboot.state import Attempt, Pending, RebootAnswer, RebootRequest, Record, RecordUnreadable
from driver_manager.sandbox.host import HostTree
from tests.support.fakes.builders import ASCEND
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.host_documents import roots_of
from tests.support.fakes.host_folders import failing

PATHS = ASCEND.paths
ROOT = "/var/lib/Ascend/driver"
Patch = pytest.MonkeyPatch


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    """A host with the old driver's tree and no driver loaded."""
    made = HostTree(tmp_path / "host", tmp_path / "bin", ASCEND)
    made.build()
    made.add_driver(ROOT, "25.5.0")
    return made


def host(tree: HostTree, *command: str, profile: Profile = ASCEND, clock: FakeClock | None = None) -> HostRebooter:
    return HostRebooter(roots_of(tree.root), profile, clock or FakeClock(), command or ("true",))


def put(tree: HostTree, path: str, content: str | bytes = "") -> Path:
    target = tree.root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content.encode() if isinstance(content, str) else content)
    return target


def test_one_look_tells_boot_uptime_and_marker_and_no_uptime_is_an_error(tree: HostTree) -> None:
    put(tree, "/proc/uptime", "123.45 600.00\n")
    look = host(tree).look()
    assert (look.boot_id, look.uptime_s, look.marker, look.marker_problem) == (tree.boot_id, 123.45, None, "")
    marker = Marker("recovery", tree.boot_id, evidence=("wedged",))
    put(tree, PATHS.reboot_marker, encode_marker(marker))
    assert host(tree).look().marker == marker
    for text in ("", "soon", "1e", "\xff", "inf", "nan", "-5"):
        put(tree, "/proc/uptime", text)
        with pytest.raises(ConfigError, match="uptime"):
            host(tree).look()


def test_a_marker_of_100_mb_and_a_pipe_in_its_place_are_problems_and_not_waited_for(tree: HostTree) -> None:
    target = put(tree, PATHS.reboot_marker)
    os.truncate(target, 100 * 1024 * 1024)
    look = host(tree).look()
    assert (look.marker, "cannot be read" in look.marker_problem) == (None, True)
    target.unlink()
    os.mkfifo(target)
    assert "not a regular file" in host(tree).look().marker_problem
    target.unlink()


def test_the_record_is_kept_as_a_line_of_json_inside_the_host_and_read_again(tree: HostTree, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tree.root / "var/lib/ascend").symlink_to(tmp_path / "outside")
    assert host(tree).record() == Record()
    record = Record(attempts=(Attempt(1, "upgrade"),), reason="waits")
    host(tree).keep(record)
    assert host(tree).record() == record
    assert list((tmp_path / "outside").iterdir()) == []
    path = roots_of(tree.root).files().path(PATHS.rebooter_record)
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["schema"] == 1
    path.write_text("garbage")
    with pytest.raises(RecordUnreadable):
        host(tree).record()
    path.unlink()
    path.mkdir()
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
    granted = Pending(RebootRequest(tree.boot_id, "upgrade"), "uid", 100)
    roots = roots_of(tree.root)
    other_boot = replace(granted, request=RebootRequest("boot-0", "upgrade"))
    assert read_host(roots, ASCEND, "", None, loads=False).granted_reboot == ""
    for pending, reason in ((granted, "upgrade"), (replace(granted, started_s=0), ""), (other_boot, ""), (None, "")):
        host(tree).keep(Record(pending=pending))
        assert read_host(roots, ASCEND, "", None, loads=False).granted_reboot == reason
    put(tree, PATHS.rebooter_record, "garbage")
    assert read_host(roots, ASCEND, "", None, loads=False).granted_reboot is None


def test_only_the_marker_that_was_seen_is_removed(tree: HostTree) -> None:
    fresh = Marker("recovery", tree.boot_id)
    for seen, text in ((fresh, encode_marker(fresh)), (Marker("upgrade", ""), "upgrade")):
        target = put(tree, PATHS.reboot_marker, text)
        host(tree).remove_marker(Marker("recovery", "an earlier boot"))
        assert host(tree).look().marker == seen
        for _ in range(2):
            host(tree).remove_marker(seen)
            assert not target.exists()


def test_no_marker_is_removed_during_work_on_the_driver_and_one_that_cannot_be_is_named(
    tree: HostTree, monkeypatch: Patch
) -> None:
    seen = Marker("recovery", "an earlier boot")
    target = put(tree, PATHS.reboot_marker, encode_marker(seen))
    lock = WorkLock(roots_of(tree.root).files(), PATHS.work_lock)
    with lock.working(FakeClock(), 1.0), pytest.raises(ModuleFailed, match="another run is working on the driver"):
        host(tree).remove_marker(seen)
    assert target.exists()
    monkeypatch.setattr(HostFiles, "remove", failing(errno.EROFS))
    with pytest.raises(ModuleFailed, match="reboot-required"):
        host(tree).remove_marker(seen)


def test_the_driver_is_ready_once_it_is_loaded_and_has_made_its_device(tree: HostTree) -> None:
    assert "is not loaded" in host(tree).why_not_ready()
    tree.load(ROOT)
    (tree.root / "dev/davinci0").unlink(missing_ok=True)
    assert "not created a device node" in host(tree).why_not_ready()
    by_a_tool = replace(ASCEND, paths=replace(PATHS, device_nodes_made_by=NodeMaker.USER_SPACE))
    assert host(tree, profile=by_a_tool).why_not_ready() == "", "the tool may not have run yet"
    put(tree, "/dev/davinci0")
    assert host(tree).why_not_ready() == ""
    marked = replace(ASCEND, paths=replace(PATHS, ready_marker="/run/ready"))
    assert "ready marker /run/ready" in host(tree, profile=marked).why_not_ready()


def test_the_hosts_machine_id_is_read_and_none_is_no_error(tree: HostTree) -> None:
    assert len(host(tree).machine_id()) == 32
    assert host(tree).system_uuid() == ""
    (tree.root / "sys/class/dmi/id").mkdir(parents=True)
    (tree.root / "sys/class/dmi/id/product_uuid").write_text("4c4c4544-0042\n")
    assert host(tree).system_uuid() == "4c4c4544-0042"
    (tree.root / "etc/machine-id").unlink()
    assert host(tree).machine_id() == ""


def test_evidence_has_the_probes_last_words_the_holders_and_the_kernels(tree: HostTree) -> None:
    put(tree, "/dev/kmsg", b"6,1,5,-;chip is wedged\n SUBSYSTEM=pci\n")
    put(tree, PATHS.reboot_marker, encode_marker(Marker("recovery", tree.boot_id, evidence=("ret=4 \udcff",))))
    marker = host(tree).look().marker
    host(tree).save_evidence("1700000000-recovery", marker.evidence if marker else ())
    saved = tree.root / PATHS.reboot_evidence.lstrip("/") / "1700000000-recovery.txt"
    for words in ("ret=4 ?", "chip is wedged", "processes that use the device:"):
        assert words in saved.read_text()
    assert saved.stat().st_mode & 0o777 == 0o600


def test_the_reboot_command_is_run_as_words_and_one_that_ends_with_a_status_was_refused(
    tree: HostTree, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tree.root)
    rows: tuple[tuple[tuple[str, ...], str, bool], ...] = (
        (("no-such-command",), "not found", True),
        (("sh", "-c", "exit 1"), " ", True),
        (("sh", "-c", "exit 126"), " ", True),
        (("sh", "-c", "kill -9 $$"), " ", False),  # the reboot may have begun
        (("touch", "ran"), "", False),
        (("sleep", "60"), "timed out after", False),
    )
    for command, problem, is_refused in rows:
        assert (tree.root / "ran").exists() is (command[0] == "sleep")
        if command[0] == "sleep":
            monkeypatch.setattr(host_reboot, "COMMAND_TIMEOUT_S", 0.2)
        answer = host(tree, *command).reboot()
        assert (bool(answer.problem), problem in answer.problem) == (bool(problem), True)
        assert answer.is_refused is is_refused


def away(tree: HostTree) -> HostTree:
    """The host's first process is in namespaces of its own."""
    for kind in ("mnt", "pid", "net", "ipc", "uts"):
        put(tree, f"/proc/1/ns/{kind}")
    return tree


def test_a_host_without_the_program_is_named_before_a_reboot_is_granted(tree: HostTree, monkeypatch: Patch) -> None:
    assert host(tree).why_no_way_in() == "", "a host whose namespaces are ours needs no way in"
    for program, at, status, err, why in (
        ("systemctl", "/usr/bin/systemctl", 0, "", ""),
        ("systemctl", "/run/current-system/sw/bin/systemctl", 0, "", ""),
        ("/sbin/reboot", "/sbin/reboot", 0, "", ""),
        ("systemctl", "/usr/bin/other", 0, "", "the host has no systemctl to reboot with: set REBOOT_COMMAND"),
        ("/sbin/reboot", "/usr/bin/reboot", 0, "", "the host has no /sbin/reboot to reboot with"),
        ("true", "/bin/true", 1, "nsenter: reassociate to namespace 'ns/pid' failed", "needs hostPID"),
        ("true", "/usr/bin/true", 1, "nsenter: failed to execute true: No such file or directory", ""),
    ):
        path, result = put(away(tree), at), Result(status, "", err)
        monkeypatch.setattr(host_reboot, "run", lambda *_, result=result, **__: result)
        found = host(tree, program, "reboot").why_no_way_in()
        path.unlink()
        assert (bool(found), why in found) == (bool(why), True)


def test_the_reboot_command_runs_in_all_namespaces_with_the_hosts_programs(tree: HostTree, monkeypatch: Patch) -> None:
    ran: list[tuple[list[str], str]] = []
    result = Result(0, "", "")

    def run(argv: list[str], *, env: dict[str, str], **_: object) -> Result:
        ran.append((argv, env["PATH"]))
        return result

    monkeypatch.setattr(host_reboot, "run", run)
    assert host(away(tree), "systemctl", "reboot").reboot() == RebootAnswer()
    ((argv, path),) = ran
    assert (argv[0], argv[-3:]) == ("nsenter", ["--", "systemctl", "reboot"])
    assert {option.partition("=")[0] for option in argv[1:-3]} == {"--mount", "--pid", "--net", "--ipc", "--uts"}
    assert "/run/current-system/sw/bin" in path.split(":"), "looked for where hosts keep their programs"
    result = Result(127, "", "nsenter: failed to execute systemctl: No such file or directory")
    answer = host(tree, "systemctl", "reboot").reboot()
    assert (answer.is_refused, "the host has no systemctl" in answer.problem) == (True, True)


def test_sysrq_syncs_remounts_and_reboots_in_this_order(tree: HostTree) -> None:
    with pytest.raises(ModuleFailed, match="sysrq-trigger"):
        host(tree).force_reboot()
    trigger, written, clock = put(tree, "/proc/sysrq-trigger"), list[str](), FakeClock()
    for second in (1, 3, 5):
        clock.after(second, lambda: written.append(trigger.read_text()))
    host(tree, clock=clock).force_reboot()
    assert written == ["s", "u", "b"]


INHIBITOR = "run/systemd/inhibit/7"
KUBELET = "# This is private data. Do not parse.\nWHAT=shutdown\nMODE=delay\nUID=0\nWHO=kubelet\n"
CONF = "systemd/logind.conf"


def test_a_shutdown_may_be_delayed_as_long_as_logind_allows_whom_it_lets_delay_it(tree: HostTree) -> None:
    rows: tuple[tuple[dict[str, str], float], ...] = (
        ({}, 0),
        ({INHIBITOR: KUBELET}, 5),
        ({INHIBITOR: KUBELET.replace("delay", "block")}, 0),
        ({INHIBITOR: KUBELET.replace("shutdown", "sleep:idle")}, 0),
        ({INHIBITOR: KUBELET.replace("shutdown", "sleep:shutdown")}, 5),
        ({f"{INHIBITOR}.ref": KUBELET}, 0),
        ({f"etc/{CONF}.d/99-kubelet.conf": "[Login]\nInhibitDelayMaxSec=600\n"}, 0),
        (
            {
                INHIBITOR: KUBELET,
                f"etc/{CONF}": "#InhibitDelayMaxSec=1h\nInhibitDelayMaxSec=30\n",
                f"usr/lib/{CONF}.d/99-kubelet.conf": "InhibitDelayMaxSec=1h\n",
                f"etc/{CONF}.d/99-kubelet.conf": "[Login]\nInhibitDelayMaxSec=2min 30s\n",
                f"etc/{CONF}.d/10-other.conf": "InhibitDelayMaxSec=900\n",
            },
            150,
        ),
        *(
            ({INHIBITOR: KUBELET, f"etc/{CONF}": f"InhibitDelayMaxSec{text}\n"}, delay_s)
            for text, delay_s in (
                *((" = 10min", 600), ("=infinity", 3600), ("=7 parsecs", 3600), ("=", 5)),
                *(("=\nKillUserProcesses=no", 5), ("=2M", 3600), ("=2m", 120), ("=500us", 0.0005)),
            )
        ),
        (
            {
                INHIBITOR: KUBELET,
                f"usr/lib/{CONF}.d/50-x.conf": "InhibitDelayMaxSec=20\n",
                f"usr/local/lib/{CONF}.d/50-x.conf": "InhibitDelayMaxSec=40\n",
            },
            40,
        ),
    )
    for files, delay_s in rows:
        for path, text in files.items():
            tree.write(path, text)
        assert host(tree).shutdown_delay_s() == delay_s, files
        for path in files:
            (tree.root / path).unlink()
