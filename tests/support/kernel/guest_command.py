"""The command line in the guest: its node on the host's API server, and how a run leaves both."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from kubernetes import client, config  # noqa: F401  # imported here so that no child has to

from driver_manager.adapters.kube import node as kube_cluster  # noqa: F401  # likewise
from driver_manager.cli import health_watch, main, reconcile, status  # noqa: F401  # likewise
from tests.support.control_plane.api import Api
from tests.support.control_plane.kubelet import Node, create_node, shown
from tests.support.control_plane.sweep.effects import Recorder, Surroundings
from tests.support.kernel.guest_fixtures import DriverRoots, boot_id, modprobe

RUN_TIMEOUT_S = 280.0  # below the guest's limit on silence: the test says what it waited for


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


class Forked:
    def __init__(
        self,
        arguments: tuple[str, ...],
        env: Mapping[str, str],
        folder: Path,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        number = len(list(folder.glob("run-*")))
        self._out, self._err = folder / f"run-{number}.out", folder / f"run-{number}.err"
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _be_command(arguments, env, self._out, self._err, before)

    def output(self) -> str:
        """What it has written to standard error so far."""
        return self._err.read_text() if self._err.exists() else ""

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def end(self) -> Ended:
        """Wait for its end; one that takes over RUN_TIMEOUT_S is killed, and the test fails."""
        deadline_s = time.monotonic() + RUN_TIMEOUT_S
        while True:
            pid, status_word = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline_s:
                self.kill()
                os.waitpid(self.pid, 0)
                raise AssertionError(f"timed out after {RUN_TIMEOUT_S:g} s: {self._err.read_text()}")
            time.sleep(0.01)
        ended = Ended(os.waitstatus_to_exitcode(status_word), self._out.read_text(), self._err.read_text())
        print(ended.err, file=sys.stderr)
        return ended


def _be_command(
    arguments: tuple[str, ...], env: Mapping[str, str], out: Path, err: Path, before: Callable[[], None]
) -> None:
    """The child's life: never returns."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(env)
        for descriptor, path in ((1, out), (2, err)):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.dup2(opened, descriptor)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        before()
        code = main.run(list(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  # a child must not come back into pytest
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


VIRTIO_PCI_VENDOR, EDU_PCI_VENDOR = "1af4", "1234"
SHIPPED = Path("driver_manager/profiles")


def write_profile(path: Path, pci_vendor: str, name: str = "rebellions", modules: str = "") -> None:
    """The profile `name`, whose accelerators are the functions of `pci_vendor`, of whatever class.

    `modules` are further lines of its table of modules.
    """
    shipped = (SHIPPED / f"{name}.toml").read_text()
    own = re.sub(r'^pci_vendor = ".*"', f'pci_vendor = "{pci_vendor}"', shipped, flags=re.MULTILINE)
    own = own.replace("[modules]\n", f"[modules]\n{modules}")
    path.write_text(own.replace('pci_classes = ["1200"]', "pci_classes = []"))


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

    def by_profile(
        self, profile: str = "rebellions", modules: str = "", pci_vendor: str = VIRTIO_PCI_VENDOR
    ) -> Command:
        """The same by another vendor's profile, with further lines in its table of modules, or for other devices."""
        return Command(self.api, self.node, self._folder, pci_vendor, profile=profile, modules=modules)

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
        return Forked(arguments, self.environment(**env), self._folder)

    def recorded(self, record: Path, *arguments: str, kill_at: int = -1, **env: str) -> Ended:
        """Run it to its end with its effects in `record`, one line each; killed right before number `kill_at`."""
        around = Surroundings("/", str(self._folder), str(self._folder))
        record.unlink(missing_ok=True)

        def before() -> None:
            # In the child, because the recorder kills the process that has made it.
            sys.addaudithook(Recorder(around, str(record), kill_at))

        return Forked(arguments, self.environment(**env), self._folder, before).end()

    def run(self, *arguments: str, **env: str) -> Ended:
        return self.start(*arguments, **env).end()

    def reconcile(self, root: Path, **env: str) -> Ended:
        """`reconcile-driver-state` with a driver root."""
        return self.run("reconcile-driver-state", DRIVER_ROOT=str(root), **env)


def old_driver(roots: DriverRoots) -> None:
    """Load the old driver, and leave what a finished install of it leaves."""
    assert modprobe(roots["v1"], "rebellions").status == 0
    STATE.parent.mkdir(exist_ok=True)
    STATE.write_text("old-digest\n")
    note = {"schema": 1, "bootId": boot_id(), "root": str(roots["v1"]), "version": "1.2.92"}
    (STATE.parent / "driver-manager.json").write_text(json.dumps(note))


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
        node = create_node(stack, api, LABELS, boot_id=boot_id())
        stack.callback(_empty, STATE.parent)
        yield Command(api, node, tmp_path)


def _empty(folder: Path) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_file():
            path.unlink()
