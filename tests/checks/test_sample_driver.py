"""The sample driver container keeps the contract: recorded after success only, ready while it is, on stand-in kmod."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fakes.driver_containers import KERNEL, EntryProgram


@pytest.fixture
def driver(tmp_path: Path) -> EntryProgram:
    """A tree for this kernel, and a modprobe that loads 2.0.1 where nothing is loaded."""
    made = EntryProgram("sample-driver", tmp_path)
    made.tree(tmp_path / "tree")
    return made


def test_it_installs_loads_records_and_stays_until_told_to_end(driver: EntryProgram) -> None:
    assert driver.ended(driver.start()) == 0
    assert (driver.root / "lib/modules" / KERNEL / "modules.dep").exists()
    assert driver.state.read_text() == "new\n"
    assert driver.marker.read_text() == "2.0.1\n"
    assert sorted(path.name for path in driver.state.parent.iterdir()) == ["driver", "driver.state", "validations"]


SEVERAL = "npu_core rebellions npu_net npu_rdma"


@pytest.mark.parametrize("told", [SEVERAL, SEVERAL.replace(" ", "\n") + "\n"], ids=["one line", "a line for each"])
@pytest.mark.parametrize("kind", ["sample-driver", "rebellions-driver"])
def test_several_modules_are_loaded_in_the_order_that_is_given(kind: str, told: str, tmp_path: Path) -> None:
    driver = EntryProgram(kind, tmp_path)
    driver.tree(tmp_path / "tree")
    driver.tool("mountpoint", "exit 1\n")
    driver.tool("mount", "exit 0\n")
    assert driver.ended(driver.start(DRIVER_MODULES=told), DRIVER_MODULES=told) == 0
    assert driver.loaded() == SEVERAL.split()
    assert driver.state.read_text() == "new\n"


def test_one_of_several_modules_that_does_not_load_is_a_failure_and_the_next_start_goes_on(
    driver: EntryProgram,
) -> None:
    works = driver.folder / "bin/modprobe"
    complete = works.read_text()
    works.write_text(complete.replace("done\n", "done\n[ $name != npu_net ] || exit 1\n", 1))
    done = driver.run("run", DRIVER_MODULES=SEVERAL)
    assert (done.returncode, "module npu_net cannot be loaded" in done.stderr) == (1, True), done.stderr
    assert not driver.state.exists()
    works.write_text(complete)
    assert driver.ended(driver.start(DRIVER_MODULES=SEVERAL), DRIVER_MODULES=SEVERAL) == 0
    assert driver.loaded() == SEVERAL.split()


def test_a_driver_that_lacks_one_of_several_modules_is_not_ready(driver: EntryProgram) -> None:
    driver.load("2.0.1")
    driver.record("new")
    assert driver.run("ready").returncode == 0
    asked = driver.run("ready", DRIVER_MODULES="rebellions npu_net")
    assert (asked.returncode, "module npu_net is not loaded" in asked.stderr) == (1, True)


@pytest.mark.parametrize("told", ["npu_core", "rebellions_core npu_rebellions"])
def test_modules_without_the_one_that_the_version_is_of_are_refused(driver: EntryProgram, told: str) -> None:
    done = driver.run("run", DRIVER_MODULES=told)
    assert (done.returncode, "DRIVER_MODULES has no rebellions; add it" in done.stderr) == (1, True)
    assert not driver.root.exists()


def test_a_current_driver_is_left_alone(driver: EntryProgram) -> None:
    driver.load("2.0.1")
    driver.state.parent.mkdir()
    driver.state.write_text("new\n")
    assert driver.ended(driver.start()) == 0
    assert not driver.root.exists()


@pytest.mark.parametrize(
    ("modprobe", "said"),
    [("exit 1\n", "cannot be loaded"), ("exit 0\n", "module rebellions is not loaded")],
)
def test_a_driver_that_does_not_load_is_not_recorded(driver: EntryProgram, modprobe: str, said: str) -> None:
    driver.state.parent.mkdir()
    driver.state.write_text("old\n")
    driver.tool("modprobe", modprobe)
    done = driver.run("run")
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    assert not driver.state.exists()
    assert driver.run("ready").returncode == 1


def test_another_version_that_is_still_loaded_is_a_failure(driver: EntryProgram) -> None:
    driver.load("1.2.92")
    done = driver.run("run")
    assert done.returncode == 1
    assert "is loaded in version 1.2.92, wanted is 2.0.1" in done.stderr
    assert not driver.state.exists()


def test_a_tree_without_modules_for_this_kernel_changes_nothing(driver: EntryProgram) -> None:
    driver.state.parent.mkdir()
    driver.state.write_text("old\n")
    done = driver.run("run", DRIVER_TREE=str(driver.folder / "absent"))
    assert (done.returncode, f"no modules for kernel {KERNEL}" in done.stderr) == (1, True)
    assert driver.state.read_text() == "old\n"


def test_the_marker_of_a_container_that_died_is_removed_first(driver: EntryProgram) -> None:
    driver.marker.parent.mkdir(parents=True)
    driver.marker.write_text("2.0.1\n")
    driver.tool("modprobe", "exit 1\n")
    assert driver.run("run").returncode == 1
    assert not driver.marker.exists()


def test_stop_removes_the_marker_and_nothing_else(driver: EntryProgram) -> None:
    driver.load("2.0.1")
    driver.state.parent.mkdir()
    driver.state.write_text("new\n")
    assert driver.run("ready").returncode == 0
    assert driver.run("stop").returncode == 0
    assert not driver.marker.exists()
    assert (driver.state.exists(), driver.module.exists()) == (True, True)
    assert driver.run("stop").returncode == 0


def test_where_only_the_state_file_is_given_there_is_no_marker(driver: EntryProgram) -> None:
    driver.load("2.0.1")
    driver.state.parent.mkdir()
    driver.state.write_text("new\n")
    assert driver.run("ready", READY_MARKER="").returncode == 0
    assert not driver.marker.exists()


def test_no_digest_and_no_such_word_are_refused(driver: EntryProgram) -> None:
    assert "DRIVER_CONFIG_DIGEST is not set" in driver.run("run", DRIVER_CONFIG_DIGEST="").stderr
    assert driver.run("install").returncode == 2
    assert driver.run("help").stdout.startswith("usage: sample-driver")
