"""A driver that only a reboot changes, through boots, by the real command line: one wish asks for one reboot."""

from __future__ import annotations

from pathlib import Path

import pytest

from driver_manager.profiles import builtin
from tests.support.control_plane.kubelet import NodeFactory
from tests.support.control_plane.runner import JOURNAL, CommandRunner, node_of
from tests.support.control_plane.servers import ControlPlane, User

ASCEND = builtin()["ascend"]
ROOT, OLD = "/var/lib/Ascend/driver", "25.2.0"
WANTED = "digest-of-25.5.0"


@pytest.fixture
def one(control_plane: ControlPlane, agent_with_events: User, tmp_path: Path, node: NodeFactory) -> CommandRunner:
    """A node with such a driver in its root, not loaded yet."""
    made = CommandRunner(control_plane, agent_with_events, tmp_path, "ascend")
    made.tree.add_driver(ROOT, OLD)
    made.node = node({"openfuyao.com/npu.present": "true"}, boot_id=made.tree.boot_id)
    return made


def reconcile(one: CommandRunner, **env: str) -> tuple[int, str]:
    """Exit code and last line of a run."""
    wanted = {"DRIVER_LOAD": "container", "DRIVER_ROOT": "", "DRIVER_CONFIG_DIGEST": WANTED, **env}
    ended = one.reconcile("--no-wait", DRIVER_PROFILE="ascend", POD_TERMINATION_TIMEOUT="0s", **wanted)
    return ended.code, ended.last_line


def boot(one: CommandRunner, *roots: str) -> None:
    """A reboot; the driver of the first of `roots` is loaded after it."""
    one.tree.reboot()
    node = node_of(one)
    info = node.read()["status"]["nodeInfo"] | {"bootID": one.tree.boot_id}
    node.api.patch(f"{node.path}/status", {"status": {"nodeInfo": info}})
    for root in roots:
        one.tree.load(root)


def is_asked(one: CommandRunner) -> bool:
    """Whether marker and label ask for a reboot: both or none."""
    marker = (one.tree.root / ASCEND.paths.reboot_marker.lstrip("/")).exists()
    assert marker is (ASCEND.keys.reboot_required in node_of(one).labels())
    return marker


def test_a_host_with_its_own_driver_is_never_asked_to_reboot(one: CommandRunner) -> None:
    one.tree.add_driver("/", OLD)
    labels = node_of(one).labels()
    for _ in range(2):
        boot(one, "/")
        code, last_line = reconcile(one)
        assert code == 10, last_line
        assert "the host has its own driver" in last_line
        assert not is_asked(one)
        assert node_of(one).labels() == labels
    assert JOURNAL not in node_of(one).annotations()


def test_a_reboot_that_brought_the_same_driver_again_is_not_asked_for_again(one: CommandRunner) -> None:
    boot(one, ROOT)
    assert reconcile(one)[0] == 9
    assert is_asked(one)
    for _ in range(2):
        boot(one, ROOT)
        code, last_line = reconcile(one)
        assert code == 5, last_line
        assert "another reboot would not help" in last_line
        assert ASCEND.paths.reboot_wish in last_line
        assert not is_asked(one)
    (one.tree.root / ASCEND.paths.reboot_wish.lstrip("/")).unlink()
    assert reconcile(one)[0] == 9, "as the message says"


def test_a_reinstall_that_stays_forced_reboots_once(one: CommandRunner) -> None:
    boot(one, ROOT)
    one.tree.record(WANTED, ROOT, OLD)
    assert reconcile(one, FORCE_REINSTALL="true")[0] == 9
    for _ in range(2):
        boot(one)
        assert reconcile(one, FORCE_REINSTALL="true")[0] == 0, "its container loads it"
        one.tree.load(ROOT)
        one.tree.record(WANTED, ROOT, OLD)
        code, last_line = reconcile(one, FORCE_REINSTALL="true")
        assert code == 0, last_line
        assert "after the reboot for the forced reinstall" in last_line
        assert not is_asked(one)
