"""The sample driver container keeps the contract: recorded after success only, ready while it is, on stand-in kmod."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path("images/sample-driver/sample-driver").resolve()
KERNEL = os.uname().release
LIMIT_S = 150.0


@dataclass(frozen=True)
class Driver:
    """The script on a tree of its own. The stand-in modprobe loads what `offered` says."""

    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "run/driver.state"

    @property
    def marker(self) -> Path:
        return self.folder / "run/validations/.ready"

    @property
    def root(self) -> Path:
        return self.folder / "run/driver"

    @property
    def module(self) -> Path:
        return self.folder / "sys/module/rebellions"

    def environment(self, **env: str) -> dict[str, str]:
        given = {
            "PATH": f"{self.folder}/bin:/usr/bin:/bin",
            "DRIVER_TREE": str(self.folder / "tree"),
            "DRIVER_ROOT": str(self.root),
            "DRIVER_VERSION": "2.0.1",
            "DRIVER_CONFIG_DIGEST": "new",
            "STATE_FILE": str(self.state),
            "READY_MARKER": str(self.marker),
            "SYS_ROOT": str(self.folder / "sys"),
        }
        return {**given, **env}

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        argv = [str(SCRIPT), *arguments]
        return subprocess.run(
            argv, env=self.environment(**env), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )

    def start(self, **env: str) -> subprocess.Popen[str]:
        # A session of its own: its sleep ends with it.
        return subprocess.Popen(
            [str(SCRIPT)], env=self.environment(**env), stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def load(self, version: str) -> None:
        self.module.mkdir(parents=True)
        (self.module / "initstate").write_text("live\n")
        (self.module / "version").write_text(f"{version}\n")


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    """A tree for this kernel, and a modprobe that loads 2.0.1 where nothing is loaded."""
    made = Driver(tmp_path)
    modules = tmp_path / "tree/lib/modules" / KERNEL
    modules.mkdir(parents=True)
    (modules / "modules.dep").touch()
    (tmp_path / "bin").mkdir()
    script = f"[ -d {made.module} ] && exit 0\nmkdir -p {made.module}\necho live >{made.module}/initstate\n"
    _tool(tmp_path / "bin/modprobe", f"{script}echo 2.0.1 >{made.module}/version\n")
    return made


def _tool(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}")
    path.chmod(0o755)


def _ended(process: subprocess.Popen[str], driver: Driver) -> int:
    """Tell it to end once it is ready; its exit status."""
    deadline_s = time.monotonic() + LIMIT_S
    while driver.run("ready").returncode:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGTERM)
    # Not for the end of its output: a `sleep` that it began as the signal came has that open.
    status = process.wait(LIMIT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=LIMIT_S)
    return status


def test_it_installs_loads_records_and_stays_until_told_to_end(driver: Driver) -> None:
    assert _ended(driver.start(), driver) == 0
    assert (driver.root / "lib/modules" / KERNEL / "modules.dep").exists()
    assert driver.state.read_text() == "new\n"
    assert driver.marker.read_text() == "2.0.1\n"
    assert sorted(path.name for path in driver.state.parent.iterdir()) == ["driver", "driver.state", "validations"]


def test_a_current_driver_is_left_alone(driver: Driver) -> None:
    driver.load("2.0.1")
    driver.state.parent.mkdir()
    driver.state.write_text("new\n")
    assert _ended(driver.start(), driver) == 0
    assert not driver.root.exists()


@pytest.mark.parametrize(
    ("modprobe", "said"),
    [("exit 1\n", "cannot be loaded"), ("exit 0\n", "module rebellions is not loaded")],
)
def test_a_driver_that_does_not_load_is_not_recorded(driver: Driver, modprobe: str, said: str) -> None:
    driver.state.parent.mkdir()
    driver.state.write_text("old\n")
    _tool(driver.folder / "bin/modprobe", modprobe)
    done = driver.run("run")
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    assert not driver.state.exists()
    assert driver.run("ready").returncode == 1


def test_another_version_that_is_still_loaded_is_a_failure(driver: Driver) -> None:
    driver.load("1.2.92")
    done = driver.run("run")
    assert done.returncode == 1
    assert "is loaded in version 1.2.92, wanted is 2.0.1" in done.stderr
    assert not driver.state.exists()


def test_a_tree_without_modules_for_this_kernel_changes_nothing(driver: Driver) -> None:
    driver.state.parent.mkdir()
    driver.state.write_text("old\n")
    done = driver.run("run", DRIVER_TREE=str(driver.folder / "absent"))
    assert (done.returncode, f"no modules for kernel {KERNEL}" in done.stderr) == (1, True)
    assert driver.state.read_text() == "old\n"


def test_the_marker_of_a_container_that_died_is_removed_first(driver: Driver) -> None:
    driver.marker.parent.mkdir(parents=True)
    driver.marker.write_text("2.0.1\n")
    _tool(driver.folder / "bin/modprobe", "exit 1\n")
    assert driver.run("run").returncode == 1
    assert not driver.marker.exists()


def test_stop_removes_the_marker_and_nothing_else(driver: Driver) -> None:
    driver.load("2.0.1")
    driver.state.parent.mkdir()
    driver.state.write_text("new\n")
    assert driver.run("ready").returncode == 0
    assert driver.run("stop").returncode == 0
    assert not driver.marker.exists()
    assert (driver.state.exists(), driver.module.exists()) == (True, True)
    assert driver.run("stop").returncode == 0


def test_where_only_the_state_file_is_given_there_is_no_marker(driver: Driver) -> None:
    driver.load("2.0.1")
    driver.state.parent.mkdir()
    driver.state.write_text("new\n")
    assert driver.run("ready", READY_MARKER="").returncode == 0
    assert not driver.marker.exists()


def test_no_digest_and_no_such_word_are_refused(driver: Driver) -> None:
    assert "DRIVER_CONFIG_DIGEST is not set" in driver.run("run", DRIVER_CONFIG_DIGEST="").stderr
    assert driver.run("install").returncode == 2
    assert driver.run("help").stdout.startswith("usage: sample-driver")
