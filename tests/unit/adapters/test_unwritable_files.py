"""A file of the host that cannot be written is found before it is written: on real file systems, each in a namespace.

What is found is compared with what a real write, removal or lock does.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import asdict

from driver_manager.adapters.host import files as module
from driver_manager.adapters.host.files import HostFiles
from driver_manager.adapters.host.system import unwritable
from driver_manager.domain.errors import ConfigError
from driver_manager.profiles import builtin
from tests.support.control_plane.container import unshare

PROFILE = builtin()["rebellions"]
RECORD, LOCK = PROFILE.paths.load_record, PROFILE.paths.effect_lock
TIMEOUT_S = 60.0

LOOK = """
import json, sys
from pathlib import Path
from driver_manager.adapters.host.files import HostFiles
files, path, lock = HostFiles(Path(sys.argv[1]), Path(sys.argv[1], "proc")), sys.argv[2], sys.argv[3]
before = sorted(str(one) for one in files.root.rglob("*"))
found = [files.why_not_writable(path), files.why_not_writable(path, tries=True), files.why_no_lock(lock)]
after = sorted(str(one) for one in files.root.rglob("*"))
really = ["", ""]
for number, act in enumerate((lambda: files.write(path, "text"), lambda: files.open_lock(lock))):
    try:
        act()
    except Exception as error:
        really[number] = getattr(error, "what", str(error))
print(json.dumps({"found": found, "really": really, "is_untouched": before == after}))
"""

FILL = "i=0; while touch run/rbln/f$i 2>/dev/null; do i=$((i+1)); done"
TMPFS = "mount -t tmpfs -o size=1m{} t run/rbln"


@dataclass(frozen=True)
class Case:
    """What happens to a host in its root folder, and what is said of it: of a record and of a lock."""

    script: str
    record: str = ""
    lock: str = ""


CASES = {
    "nothing": Case("true"),
    "nothing is there": Case("rm -r run"),
    "a dangling link": Case("ln -sf /nowhere run/rbln/driver-manager.json"),
    "a link to a folder": Case("rm -r run/rbln; mkdir elsewhere; ln -s /elsewhere run/rbln"),
    "a folder": Case("rm run/rbln/*; mkdir run/rbln/driver-manager.json", "is a folder"),
    "a folder for a lock": Case("mkdir run/rbln/driver-manager.effect.lock", "", "is a folder"),
    "a link for a lock": Case("ln -s /nowhere run/rbln/driver-manager.effect.lock", "", "Too many levels"),
    "the parent is a file": Case("rm -r run/rbln; touch run/rbln", "Not a directory", "Not a directory"),
    "the parent is a loop": Case("rm -r run/rbln; ln -s rbln run/rbln", "Too many levels", "Too many levels"),
    "no inode": Case(f"{TMPFS.format(',nr_inodes=8')}; {FILL}", "has only 0 inodes left", "inodes left"),
    "no block": Case(
        f"{TMPFS.format('')}; cat /dev/zero > run/rbln/full 2>/dev/null; true", "has only 0 bytes left", "bytes left"
    ),
    "read-only": Case(
        f"{TMPFS.format('')}; mount -o remount,ro run/rbln", "Read-only file system", "Read-only file system"
    ),
    "a mounted file": Case(
        "mount --bind run/rbln/driver-manager.json run/rbln/driver-manager.json", "Device or resource busy"
    ),
}
BY_ROOT = {
    "immutable": Case(f"{TMPFS.format('')}; touch {RECORD[1:]}; chattr +i {RECORD[1:]}", "Operation not permitted"),
    "append-only": Case(f"{TMPFS.format('')}; touch {RECORD[1:]}; chattr +a {RECORD[1:]}", "Operation not permitted"),
    "in an immutable folder": Case(f"{TMPFS.format('')}; chattr +i run/rbln", "Permission denied", "Permission denied"),
}
WRITES_ANYWAY = ("no block",)
"""A lock takes no block: it is refused for the record beside it."""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    for folder in ("run/rbln", "proc/1"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / RECORD.lstrip("/")).touch()
    return tmp_path


@pytest.mark.submission
@pytest.mark.parametrize(
    ("name", "case"),
    [
        *CASES.items(),
        *(
            pytest.param(*item, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a file immutable"))
            for item in BY_ROOT.items()
        ),
    ],
    ids=[*CASES, *BY_ROOT],
)
def test_what_a_write_would_meet_is_found_without_one(host: Path, name: str, case: Case) -> None:
    words = [*unshare(), "sh", "-c", f'{case.script} && exec "$@"', "sh"]
    argv = [*words, sys.executable, "-c", LOOK, str(host), RECORD, LOCK]
    ran = subprocess.run(argv, cwd=host, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    look, tried, lock = said["found"]
    assert (case.record in look, case.record in tried, case.lock in lock) == (True, True, True), said
    assert (bool(look), bool(tried), bool(lock)) == (bool(case.record), bool(case.record), bool(case.lock)), said
    record, real_lock = said["really"]
    assert bool(record) == bool(case.record), said
    assert bool(real_lock) == (bool(case.lock) and name not in WRITES_ANYWAY), said
    assert said["is_untouched"]


def test_what_only_a_write_meets_is_found_by_one_that_is_taken_back(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = HostFiles(host, host / "proc")
    beside = [one.name for one in (host / "run/rbln").iterdir()]

    def over_quota(*_: object, **__: object) -> None:
        raise OSError(122, "Disk quota exceeded")

    for call in ("rename", "fsync"):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, over_quota)
            assert files.why_not_writable(RECORD) == ""
            assert files.why_not_writable(RECORD, tries=True) == f"{RECORD} cannot be written: Disk quota exceeded"
            with pytest.raises(ConfigError, match="Disk quota exceeded"):
                files.write(RECORD, "text")
        assert [one.name for one in (host / "run/rbln").iterdir()] == beside


def test_a_small_file_system_with_few_inodes_left_is_refused_before_the_last_is_used(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MIN_FREE_INODES", 2**70)
    assert HostFiles(host, host / "proc").why_not_writable(RECORD).endswith(" inodes left")


def test_each_record_lock_and_the_evidence_of_a_profile_is_looked_at(host: Path) -> None:
    paths = PROFILE.paths
    evidence = f"{paths.evidence}/any"
    for path in (*paths.records("run"), *paths.locks(), evidence):
        with contextlib.suppress(FileNotFoundError):
            (host / path.lstrip("/")).unlink()
        (host / path.lstrip("/")).mkdir(parents=True)
    found = unwritable(HostFiles(host, host / "proc"), PROFILE, paths.records("run"))
    assert found.keys() == {*paths.records("run"), *paths.locks(), evidence}
    assert paths.run_record("run") in found


def test_each_file_of_a_profile_that_a_run_keeps_is_a_record_or_a_lock() -> None:
    paths = PROFILE.paths
    names = {name for name in dir(type(paths)) if isinstance(getattr(type(paths), name), property)}
    # Figures for metrics, and what health-watch, the rebooter and people write: no run fails without these.
    others = {"run_figures", "health_record", "mute_file", "ready_withdrawn", "rebooter_lock", "reboot_wish"}
    known = {*paths.records(), *paths.locks()}
    assert {name for name in names if getattr(paths, name) not in known} == others
    assert {asdict(paths)[name] for name in ("state_file", "load_record")} < known
