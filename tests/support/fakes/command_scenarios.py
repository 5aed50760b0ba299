"""Scenarios of commands on a node: scripts in `tests/unit/golden/commands.txt`, each with the output that it must give.

Write a title, a line with the events before the commands (or `-`), and the commands, each on a line that begins with
`$`. A line that begins with `@` has events between two commands. Events are the keys of EVENTS; some take a value.
`$ state` shows the node. Then run `python -m tests.support.fakes.command_scenarios` and read the outputs in the file.

Lines of standard error begin with `!`. `status` is shown as the lines that differ from the first one. Each command that
changes nothing is also run with `-o json`: its form must be as documented, and its exit code the same.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host.notes import HostClientNotes
from driver_manager.cli import session as wiring
from driver_manager.cli.main import run
from driver_manager.core.swap import run as observation
from driver_manager.domain import host_record
from driver_manager.domain.health.watch import HealthState, History, Wedge, encode_watch_record
from driver_manager.domain.host import DeviceVerdict, Health
from driver_manager.domain.journal import Journal, Owner, encode
from driver_manager.domain.node_state import Generation
from driver_manager.domain.pods import client_record
from driver_manager.domain.pods.client_record import Client, ClientRecord, ClientState
from driver_manager.domain.settings import HEADINGS
from driver_manager.sandbox.apiserver import Deny, apply_merge_patch
from driver_manager.sandbox.cluster import NODE
from driver_manager.sandbox.host import HostTree
from driver_manager.sandbox.scenarios import OLD
from tests.support.fakes.builders import PAUSED, PLUGIN
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.host_documents import roots_of
from tests.support.fakes.sandboxed import ByHand, by_hand, upgradable
from tests.support.fakes.schemas import conforms
from tests.support.fakes.signals import signals_kept

GOLDEN = Path(__file__).parents[2] / "unit/golden/commands.txt"
READS_ONLY = ("status", "plan", "preflight", "holders")
HOLDER = "0d9b1c0e-6d0f-4e0b-9a53-0b8d6c1f2a77"
SERVICE = "rbln_daemon.service"
GONE = Owner("rbln-system/driver-gone", "dead")
DEVICES = (
    DeviceVerdict("rbln0", Health.HEALTHY, "", "0000:c1:00.0"),
    DeviceVerdict("rbln1", Health.UNHEALTHY, "abnormal", "0000:c2:00.0"),
)
WEDGED = History(HealthState.WEDGED, failures=3, reason="rbln0 is gone")
RECORDS = {
    "wedged": WEDGED,
    "wedged-at": replace(WEDGED, wedge=Wedge(1_767_323_045)),
    "devices": History(HealthState.SUSPECT, failures=1, reason="rbln1 is abnormal", devices=DEVICES),
    "stale": History(HealthState.HEALTHY, was_healthy=True),
    "other-boot": WEDGED,
    "stuck": History(HealthState.SUSPECT, failures=1, stuck=Owner(pid=4242, start_ticks=1, pid_namespace=1)),
}


class Desk:
    def __init__(self, node: ByHand, patch: pytest.MonkeyPatch) -> None:
        self.node, self.tree, self.patch = node, node.tree, patch

    def path(self, path: str) -> Path:
        return self.tree.root / path.lstrip("/")

    def write(self, path: str, text: str) -> None:
        self.path(path).write_text(text)

    def merge(self, **parts: Any) -> None:
        self.node.cluster.store.patch("nodes", NODE, lambda there: apply_merge_patch(there, parts))

    def annotate(self, key: str, value: str) -> None:
        self.merge(metadata={"annotations": {key: value}})


def _deny(desk: Desk, value: str) -> None:
    verb, resource = value.split(":")
    server = desk.node.cluster.server
    desk.patch.setattr(server, "deny", [*server.deny, Deny(verb, resource)])


def _environment(desk: Desk, value: str) -> None:
    name, _, text = value.partition(":")
    desk.patch.setenv(name, text.replace("_", " ") if name == "DRIVER_CONFIG_DIGEST" else text)


def _record(desk: Desk, value: str) -> None:
    path = desk.path(desk.tree.profile.paths.health_record)
    boot = "another-boot" if value == "other-boot" else desk.tree.boot_id
    path.write_text(encode_watch_record(RECORDS[value], boot))
    if value == "stale":
        os.utime(path, (1_000_000_000, 1_000_000_000))


def _clients(desk: Desk, value: str) -> None:
    notes = HostClientNotes(roots_of(desk.tree.root), desk.tree.profile, FakeClock())
    seen = notes.sighting()
    load = "of an earlier driver" if value == "older" else seen.load
    generation = Generation(seen.boot_id, load=load, digest=seen.digest, ready_s=1_767_323_045.0)
    clients = (Client("1", "monitoring/exporter", "DaemonSet"), Client("2", "a/b", "ReplicaSet", ClientState.RESTARTED))
    notes.remember(client_record.encode(ClientRecord(generation, clients, has_looked=True, claims=("team/npu",))))


def _journal(desk: Desk, value: str) -> None:
    held = Journal(Owner(value, "uid-of-driver"), desk.tree.boot_id, begin="2026-01-02T03:04:05Z")
    desk.annotate(desk.tree.profile.keys.journal, encode(held))


def _taken(desk: Desk, value: str) -> None:
    """A dead run has paused a label and stopped a service; its record is on the host, or it is of an older version."""
    held = Journal(GONE, desk.tree.boot_id, {PLUGIN: "true"}, services=(SERVICE,), record="run-1" * (value != "old"))
    desk.merge(metadata={"labels": {PLUGIN: PAUSED}})
    desk.annotate(desk.tree.profile.keys.journal, encode(held))
    if value != "old":
        desk.write(desk.tree.profile.paths.run_record("run-1"), host_record.encode(host_record.of(held)))


def _owned(desk: Desk, _: str) -> None:
    """A run in another pod has the node."""
    name, namespace = desk.node.cluster.driver_pod(), desk.tree.profile.namespace
    owner = Owner(f"{namespace}/{name}", desk.node.cluster.store.get("pods", name, namespace)["metadata"]["uid"])
    desk.annotate(desk.tree.profile.keys.journal, encode(Journal(owner, desk.tree.boot_id)))


def _left(desk: Desk, _: str) -> None:
    """A record on the host that no journal names."""
    left = Journal(GONE, desk.tree.boot_id, services=(SERVICE,), record=f"{desk.tree.boot_id}:1:9:9")
    desk.write(desk.tree.profile.paths.run_record(left.record), host_record.encode(host_record.of(left)))


def _folder(desk: Desk, value: str) -> None:
    place = desk.path(getattr(desk.tree.profile.paths, value))
    place.unlink(missing_ok=True)
    (place / "kept").mkdir(parents=True)


def _away(desk: Desk, _: str) -> None:
    for module in (wiring, observation):
        desk.patch.setattr(module, "is_this_host", lambda *_: False)


def _no_answer(desk: Desk, _: str) -> None:
    config = json.loads(desk.node.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    desk.write("unanswered", json.dumps(config))
    desk.patch.setenv("KUBECONFIG", str(desk.path("unanswered")))
    desk.patch.setenv("API_TIMEOUT", "200ms")


EVENTS: dict[str, Callable[[Desk, str], None]] = {
    "deny": _deny,
    "allow": lambda desk, _: desk.patch.setattr(desk.node.cluster.server, "deny", []),
    "env": _environment,
    "unset": lambda desk, value: desk.patch.delenv(value, raising=False),
    "no-answer": _no_answer,
    "hold": lambda desk, value: desk.tree.hold_device_by(4242, "trainer", **({"pod_uid": HOLDER} if value else {})),
    "hold-unnamed": lambda desk, _: desk.tree.hold_device(),
    "release": lambda desk, _: desk.tree.end_process(4242),
    "release-unnamed": lambda desk, _: desk.write("sys/module/rebellions/refcnt", "0\n"),
    "record": _record,
    "clients": _clients,
    "journal": _journal,
    "taken": _taken,
    "owned": _owned,
    "label": lambda desk, value: desk.merge(metadata={"labels": dict([value.split(":")])}),
    "workload": lambda desk, value: desk.node.cluster.add_workload("trainer", app="trainer", empty_dir=value == "dir"),
    "left": _left,
    "away": _away,
    "as-driver-pod": lambda desk, _: desk.patch.setattr(socket, "gethostname", desk.node.cluster.driver_pod),
    "no-host": lambda desk, _: desk.patch.setattr(wiring, "CONTAINER_HOST_ROOT", Path("/nonexistent")),
    "modules-disabled": lambda desk, _: desk.write("proc/sys/kernel/modules_disabled", "1\n"),
    "image": lambda desk, value: desk.tree.add_driver("/", value),
    "folder": _folder,
    "no-folder": lambda desk, value: shutil.rmtree(desk.path(getattr(desk.tree.profile.paths, value))),
    "shipped": lambda *_: None,
}
"""`shipped` makes a node whose host image has the loaded driver."""


def _shipped(tree: HostTree) -> None:
    tree.add_driver("/", OLD)
    tree.load("/")


def happen(desk: Desk, line: str) -> None:
    for word in line.split():
        if word != "-":
            name, _, value = word.partition("=")
            EVENTS[name](desk, value)


NORMAL = (
    (r"(rbln-[a-z-]+)-[a-z0-9]{5}\b", r"\1-xxxxx"),
    (r"(?!2026-01-02T)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", "<time>"),
    (r"\d\d:\d\d:\d\d UTC(?: \(\d+ s\))?", "<time>"),
    (r"\((?:\d+ (?:d|h|min|s) ?)+ago\)", "(… ago)"),
    (r"\d{5,} min ago", "<n> min ago"),
    (r"127\.0\.0\.1:\d{4,5}", "127.0.0.1:<port>"),
    (r"(?m)^! \d\d:\d\d:\d\d\.\d{3} ", "! "),
    (r"(?m)^! .*(?: is gone, \d+ left|; trying again|device in use: .*)\n", ""),
    (r"evidence/\d+-", "evidence/<time>-"),
    (r"users were without (operands|the device) for [^;\n]*", r"users were without \1 for <n> s"),
    (r"(?m)^window:   (about|at least) .*$", r"window:   \1 <n> s"),
    (r"\b\d+\.\d+ s\b", "<n> s"),
)


def normal(text: str, folder: str) -> str:
    text = text.replace(folder, "<folder>")
    for pattern, new in NORMAL:
        text = re.sub(pattern, new, text)
    return text


def changes(before: list[str], after: list[str]) -> list[str]:
    """The lines that differ. Of several lines in a row that are gone, the first one and the number of the others."""
    found = []
    for tag, begin, end, first, last in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            gone = before[begin:end]
            found += [f"-{line}" for line in gone[:1]]
            found += [f"-… {len(gone) - 1} more"] * (len(gone) > 1)
            found += [f"+{line}" for line in after[first:last]]
    return found


def state(desk: Desk) -> str:
    """What a run may change on the node."""
    node = desk.node.cluster.store.get("nodes", NODE)
    labels, requests = node["metadata"]["labels"], desk.node.cluster.server.requests
    cordon = "cordoned" if node.get("spec", {}).get("unschedulable") else "not cordoned"
    journal = "journal" if desk.tree.profile.keys.journal in node["metadata"].get("annotations", {}) else "no journal"
    record = desk.path(desk.tree.profile.paths.run_record("run-1")).exists()
    return (
        f"driver {desk.tree.driver_version}, {PLUGIN.rpartition('.')[2]}={labels[PLUGIN]}, {cordon}, {journal}, "
        f"{sum(one.verb == 'patch' and not one.subresource for one in requests)} patch(es), "
        f"{SERVICE} {'runs' if SERVICE in desk.tree.services else 'does not run'}, "
        f"{'record' if record else 'no record'}"
    )


def _typed(words: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    return int(code), out.getvalue(), err.getvalue()


def command(words: str) -> tuple[str, str]:
    """The output of a command, both streams and the exit code; and its standard output alone."""
    code, out, err = _typed(words.split())
    name = words.partition(" ")[0]
    if name in READS_ONLY:
        again, text, _ = _typed([*words.split(), "-o", "json"])
        assert again == code
        is_plan = "decision" in json.loads(text)
        conforms("plan" if is_plan else "failure" if "error" in json.loads(text) else name, text)
    return "\n".join([*(f"! {line}" for line in err.splitlines()), f"exit {code}"]), out.rstrip("\n")


def blocks() -> dict[str, str]:
    """Events, commands and recorded output of each scenario, by title."""
    found = {}
    for block in re.split(r"^## ", GOLDEN.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, rest = block.partition("\n")
        found[title] = rest.strip("\n")
    return found


def script_of(block: str) -> list[str]:
    first, *rest = block.split("\n")
    return [first, *(line for line in rest if line[:2] in ("$ ", "@ "))]


@contextlib.contextmanager
def desk_for(events: str, patch: pytest.MonkeyPatch) -> Iterator[tuple[Desk, str]]:
    """A desk on a new node, and the folder that has everything."""
    for name in (name for _, group in HEADINGS for one in group for name in (one.env, *one.also)):
        patch.delenv(name, raising=False)
    prepare = _shipped if "shipped" in events.split() else upgradable
    with tempfile.TemporaryDirectory() as folder, by_hand(Path(folder), prepare) as node, signals_kept():
        own = {"NODE_NAME": NODE, "LOG_FORMAT": "text", "DRIVER_CONFIG_DIGEST": "wanted", "DEVICE_FREE_TIMEOUT": "1s"}
        own |= {"DRIVER_LOAD": "none"} if prepare is _shipped else {}
        for name, value in node.environment(**own, PATH=f"{node.tree.bin}{os.pathsep}{os.environ['PATH']}").items():
            patch.setenv(name, value)
        patch.setattr(wiring, "CONTAINER_HOST_ROOT", node.tree.root)
        yield Desk(node, patch), folder


def played(script: list[str], patch: pytest.MonkeyPatch, baseline: list[str]) -> str:
    """The block of a scenario with its output now. `baseline` is the first output of `status`, set if it is empty."""
    lines = [script[0]]
    with desk_for(script[0], patch) as (desk, folder):
        happen(desk, script[0])
        for line in script[1:]:
            lines += ["", line]
            if line.startswith("@ "):
                happen(desk, line[2:])
            elif line == "$ state":
                lines.append(state(desk))
            else:
                ending, shown = command(line[2:])
                text = normal(shown, folder).split("\n") if shown else []
                if line.startswith("$ status") and baseline:
                    text = changes(baseline, text) if text else []
                elif line.startswith("$ status"):
                    baseline += text
                lines += [*text, normal(ending, folder)]
    return "\n".join(lines)


if __name__ == "__main__":
    # Words on the command line: only the scenarios whose title has one of them.
    baseline: list[str] = []
    written = [GOLDEN.read_text(encoding="utf-8").partition("## ")[0].rstrip("\n") + "\n"]
    for title, recorded in blocks().items():
        output = recorded
        if not baseline or not sys.argv[1:] or any(word in title for word in sys.argv[1:]):
            with pytest.MonkeyPatch.context() as patch:
                output = played(script_of(recorded), patch, baseline)
        written.append(f"## {title}\n{output}\n")
    GOLDEN.write_text("\n".join(written), encoding="utf-8")
