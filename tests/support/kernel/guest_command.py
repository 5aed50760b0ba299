"""The command line in the guest: its node on the host's API server, and how a run leaves both."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.control_plane.api import Api
from tests.support.control_plane.kubelet import Node, create_node, shown
from tests.support.control_plane.sweep.process import Order, Recorder
from tests.support.kernel.forked_command import Ended, Forked
from tests.support.kernel.guest_fixtures import DriverRoots, modprobe
from tests.support.kernel.guest_profile import VIRTIO_PCI_VENDOR, write_profile

PREFIX = "rebellions.ai/npu.deploy."
JOURNAL = "rebellions.ai/npu-driver-manager.journal"
STATE = Path("/run/rbln/rbln-driver.state")
DRIVER_ROOT = Path("/run/rbln/driver")
LABELS = {f"{PREFIX}device-plugin": "true", f"{PREFIX}container-toolkit": "team-a", f"{PREFIX}vfio-manager": "false"}


class Command:
    """The command line on this guest for one node, whose accelerators are the functions of `pci_vendor`.

    `profile` and `modules` are what `write_profile` takes.
    """

    def __init__(
        self,
        api: Api,
        node: Node,
        folder: Path,
        pci_vendor: str = VIRTIO_PCI_VENDOR,
        *,
        profile: str = "rebellions",
        modules: str = "",
    ) -> None:
        self.api = api
        self.node = node
        self._folder = folder
        self._profile = folder / f"{profile}-{pci_vendor}.toml"
        write_profile(self._profile, pci_vendor, profile, modules)

    def for_devices(self, pci_vendor: str) -> Command:
        """The same for other accelerators of this node."""
        return Command(self.api, self.node, self._folder, pci_vendor)

    def by_profile(self, profile: str, modules: str) -> Command:
        """The same by another vendor's profile, with further lines in its table of modules."""
        return Command(self.api, self.node, self._folder, profile=profile, modules=modules)

    def environment(self, **env: str) -> dict[str, str]:
        """An init container's environment; `env` adds to it."""
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "KUBECONFIG": os.environ["GUEST_AGENT_KUBECONFIG"],
            "NODE_NAME": self.node.name,
            "HOST_ROOT": "/",
            "PROFILE_FILE": str(self._profile),
            "DRIVER_LOAD": "manager",
            "DRIVER_CONFIG_DIGEST": "new-digest",
            "LOG_FORMAT": "text",
            **env,
        }

    def start(self, *arguments: str, **env: str) -> Forked:
        """Start a command."""
        return Forked(arguments, self.environment(**env), self._folder)

    def recorded(self, record: Path, *arguments: str, kill_at: int = -1, **env: str) -> Ended:
        """Run it to its end with its effects in `record`, one line each; killed right before number `kill_at`."""
        order = Order(
            arguments, {"HOST_ROOT": "/", "TMPDIR": str(self._folder)}, "", f"{self._folder}/err", str(record), kill_at
        )
        record.unlink(missing_ok=True)
        before = partial(_record, order)
        return Forked(arguments, self.environment(**env), self._folder, before).end()

    def run(self, *arguments: str, **env: str) -> Ended:
        """Run it to its end."""
        return self.start(*arguments, **env).end()

    def reconcile(self, root: Path, **env: str) -> Ended:
        """`reconcile-driver-state` with a driver root."""
        return self.run("reconcile-driver-state", DRIVER_ROOT=str(root), **env)


def _record(order: Order) -> None:
    sys.addaudithook(Recorder(order))


def old_driver(roots: DriverRoots) -> None:
    """Load the old driver, and leave what a finished install of it leaves."""
    assert modprobe(roots["v1"], "rebellions").status == 0
    STATE.parent.mkdir(exist_ok=True)
    STATE.write_text("old-digest\n")
    note = {"schema": 1, "bootId": boot_id(), "root": str(roots["v1"]), "version": "1.2.92"}
    (STATE.parent / "driver-manager.json").write_text(json.dumps(note))


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def assert_given_back(command: Command) -> None:
    """The node has its labels, no journal and no cordon."""
    node = command.node.read()
    assert {key: node["metadata"]["labels"].get(key) for key in LABELS} == LABELS
    assert JOURNAL not in node["metadata"].get("annotations", {})
    assert shown(node)[0] in ("ready", "failed")
    assert "unschedulable" not in node["spec"]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """A node on the host's API server that this guest is, and the command line for it. /run/rbln is left empty."""
    with contextlib.ExitStack() as stack:
        url, ca, token = (os.environ[name] for name in ("GUEST_API_URL", "GUEST_API_CA", "GUEST_ADMIN_TOKEN"))
        api = stack.enter_context(Api(url, Path(ca), token))
        node = create_node(stack, api, LABELS, boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        stack.callback(_empty, STATE.parent)
        yield Command(api, node, tmp_path)


def _empty(folder: Path) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_file():
            path.unlink()
