"""Measures upgrades of the real command line: one, a thousand nodes at once, and the search for a device's holders."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from driver_manager.sandbox.host import HostTree
from tests.assurance.bench.figure import Figure, Target, floor_s
from tests.support.control_plane.kubelet import Operands, create_node, create_operands
from tests.support.control_plane.many_nodes import Crowd, Crowded
from tests.support.control_plane.runner import NEW, CommandRunner, lighten
from tests.support.control_plane.servers import ControlPlane
from tests.support.fakes.storm import Outage, no_numbers, own_numbers, peak, requests_s

PROCESSES = 5_000
SPAWN = 'i=0; while [ $i -lt "$1" ]; do sleep 300 & i=$((i+1)); done; echo spawned; wait'
DEVICE = "/dev/full"


@contextlib.contextmanager
def many_processes() -> Iterator[None]:
    """5,000 sleeping processes, in a session of their own that ends with the context."""
    argv = ["sh", "-c", SPAWN, "sh", str(PROCESSES)]
    shell = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True, text=True)
    try:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "spawned\n"
        yield
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def measure_holders(plane: ControlPlane, folder: Path, runs: int) -> list[float]:
    """Seconds of `driver-manager holders`, start of the process included, with one holder among all processes."""
    command_runner = CommandRunner(plane, plane.agent_with_events, folder, is_forked=False).with_upgrade()
    command_runner.tree.hold_device()
    shipped = Path("driver_manager/profiles/rebellions.toml").read_text()
    own = folder / "own.toml"
    own.write_text(shipped.replace('"/dev/rbln[0-9]*", "/dev/rsd[0-9]*", "/dev/rblnfs*"', f'"{DEVICE}"'))
    seconds = []
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(plane.api(plane.admin))
        # This machine is the node: its /proc is read.
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        command_runner.node = create_node(stack, api, {}, boot_id=boot_id)
        stack.enter_context(many_processes())
        stack.enter_context(Path(DEVICE).open("rb"))
        env = {"PROFILE_FILE": str(own), "DRIVER_PROFILE": "rebellions", "PROC_ROOT": "/proc", "DEV_ROOT": "/dev"}
        for _ in range(runs):
            begun_s = time.monotonic()
            ended = command_runner.run("holders", **env)
            seconds.append(time.monotonic() - begun_s)
            if ended.code or str(os.getpid()) not in ended.out:
                raise SystemExit(f"the holder was not found: {ended.err}{ended.out}")
    return seconds


RMMOD = """\
#!/bin/sh
for name; do :; done
read -r count < {modules}/"$name"/refcnt || exit 1
[ "$count" = 0 ] || {{ echo "rmmod: ERROR: Module $name is in use" >&2; exit 1; }}
if [ "$name" = rebellions ]; then
    rm {modules}/rebellions_core/holders/rebellions {device}
    echo 0 > {modules}/rebellions_core/refcnt
fi
mv {modules}/"$name" {modules}/../.gone && exec rm -r {modules}/../.gone
"""
MODPROBE = """\
#!/bin/sh
case $1 in --dump-modversions | --show-depends) exit 0 ;; esac
[ -d {modules}/rebellions ] && exit 0
for name in rebellions_core rebellions; do
    mkdir -p {modules}/$name/holders
    echo 0 > {modules}/$name/refcnt
    echo {version} > {modules}/$name/version
    echo live > {modules}/$name/initstate
done
: > {modules}/rebellions_core/holders/rebellions
echo 1 > {modules}/rebellions_core/refcnt
: > {device}
"""


def quicken(tree: HostTree, version: str) -> None:
    """Put them in place of a host's tools; `version` is what modprobe loads."""
    lighten(tree)
    where = {"modules": tree.root / "sys/module", "device": tree.root / "dev/rbln0", "version": version}
    quoted = {name: shlex.quote(str(value)) for name, value in where.items()}
    for name, text in (("rmmod", RMMOD), ("modprobe", MODPROBE)):
        (tree.bin / name).write_text(text.format(**quoted))
        (tree.bin / name).chmod(0o755)


POD_STOP_S = 1.0
PEAK = Path(__file__).with_name("peak.py")


@dataclass(frozen=True)
class Sample:
    """One reconcile. Seconds, and a count; `floor_s` is the machine's floor right before it."""

    requests: int
    reaction_s: float
    overhead_s: float
    floor_s: float


def measure_peak(plane: ControlPlane, folder: Path) -> float:
    peak = folder / "peak"
    measure(plane, folder, (sys.executable, "-I", "-S", str(PEAK), str(peak)))
    return float(peak.read_text())


def measure(plane: ControlPlane, folder: Path, through: tuple[str, ...] = ()) -> Sample:
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(plane.api(plane.admin))
        command_runner = CommandRunner(plane, plane.agent_with_events, folder, through=through, is_forked=False)
        command_runner = command_runner.with_upgrade()
        quicken(command_runner.tree, NEW)
        node = create_node(stack, api, {}, boot_id=command_runner.tree.boot_id)
        command_runner.node = node
        made: Operands = create_operands(stack, api, node)
        for component in made.components:
            node.kubelet.stop_after(component, POD_STOP_S)
        labels, mark, floor = node.labels(), plane.audit_mark(), floor_s()
        ended = command_runner.reconcile()
        if ended.code or node.labels() != labels:
            raise SystemExit(f"the run did not end as it has to: {ended.err}")
        if command_runner.tree.driver_version != NEW:
            raise SystemExit(f"the driver is {command_runner.tree.driver_version}")
        gone_s = max(deletion.asked_at_s or 0.0 for deletion in node.kubelet.deletions())
        records = plane.audit(plane.agent_with_events.name, since=mark)
        requests = sum(record.is_counted for record in records)
        return Sample(requests, ended.at_s - gone_s, ended.took_s - POD_STOP_S, floor)


NODES = 1_000
LIMIT_S = 1_500.0
UNLIMITED = ("--max-requests-inflight=4000", "--max-mutating-requests-inflight=2000")
"""For an API server on this machine alone. By its default it refuses some of a thousand with 429, who come again."""

CLIENTS = 1_000
OUTAGE = Outage(429, 5.0, retry_after_s=1)


def measure_crowd(plane: ControlPlane) -> list[Figure]:
    """One node, then all of them. SystemExit where one does not end well."""
    alone, many = _reconciled(plane, 1).most_requests(), _reconciled(plane, NODES)
    reactions_s = tuple(many.reactions_s())
    audited = (
        "audit log; real agents, simulated hosts; one API server, its limits of requests in flight raised; "
        f"{many.took_s:.0f} s, at most {many.peak} requests in 100 ms"
    )
    ended = f"last pod's deletion to the end of the run; median {reactions_s[NODES // 2]:.2f} s"
    return [
        Figure(Target.CROWD, tuple(float(len(run.requests) - alone) for run in many.runs), audited),
        Figure(Target.CROWD_REACTION, (reactions_s[int(0.99 * len(reactions_s))],), ended, (floor_s(),)),
    ]


def _reconciled(plane: ControlPlane, size: int) -> Crowded:
    with plane.api(plane.admin) as api, Crowd(plane, api, plane.agent_with_events, size) as crowd:
        done = crowd.reconcile(LIMIT_S)
    failed = [run for run in done.runs if run.code or not run.is_unloaded]
    if failed or len(done.runs) != size:
        raise SystemExit(f"{len(failed)} of {size} runs did not end as they have to: {failed[:1]}")
    return done


def measure_storm() -> list[Figure]:
    """The most requests in 100 ms when 1,000 clients all had to come back in a second: with jitter, without."""
    with_jitter, without = (peak(requests_s(OUTAGE, made(CLIENTS))) for made in (own_numbers, no_numbers))
    how = f"real clients on simulated clocks, 5 s of 429 with Retry-After: 1; {without} of 1,000 without jitter"
    return [Figure(Target.STORM, (float(with_jitter),), how)]
