"""A reboot that an administrator has approved, played by the real rebooter's command from its request to its end."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.control_plane.api import wait_until
from tests.support.control_plane.kubelet import Node
from tests.support.control_plane.processes import RUN_TIMEOUT_S, Command
from tests.support.control_plane.runner import ASCEND_ROOT, CommandRunner

KEYS = "npu.openfuyao.com/"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/npu-operator/leases/driver-manager-reboots"
OPTIONS = {"OPERATOR_NAMESPACE": "npu-operator", "REBOOTER_INTERVAL": "0.1s", "REBOOT_EVICT": "true"}


def approved_reboot(runner: CommandRunner, env: Mapping[str, str]) -> str:
    """Play it on a host whose marker asks for a reboot; what the rebooter says that it lacks, "" for nothing."""
    tree, node = runner.tree, runner.node
    node.api.patch(node.path, {"metadata": {"annotations": {f"{KEYS}approve-reboot": "true"}}})
    first = runner.start("rebooter", **OPTIONS, **env)
    what = "the reboot is reported, or a right is missing"
    wait_until(lambda: tree.is_reboot_requested or _refused(first), what, RUN_TIMEOUT_S)
    if output := _refused(first):
        return output
    first.kill()
    tree.reboot()
    tree.load(ASCEND_ROOT)
    node.report_boot(tree.boot_id)
    second = runner.start("rebooter", **OPTIONS, **env)
    wait_until(lambda: _is_clean(node) or _refused(second), "all is given back, or a right is missing", RUN_TIMEOUT_S)
    output = _refused(second)
    ended = second.terminate()
    return output or ("" if ended.code == 0 else ended.err)


def _refused(run: Command) -> str:
    output = run.output()
    return output if "forbidden" in output or '"level": "warning"' in output or run.has_ended else ""


def _is_clean(node: Node) -> bool:
    """Whether nothing tells of a reboot any more, and the slot is free."""
    keys = {**node.labels(), **node.annotations()}
    ours = [key for key in keys if key.startswith(KEYS)]
    return not ours and not node.api.get(LEASE)["spec"].get("holderIdentity")
