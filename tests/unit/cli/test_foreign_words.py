"""What others wrote is printed on one line and moves no cursor: on Nodes, pods and rollouts, in files and by tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from driver_manager.domain.fleet.spec import PLURAL
from driver_manager.sandbox.cluster import NODE
from driver_manager.sandbox.scenarios import NEW_ROOT
from tests.support.fakes.fleet_scene import NAMESPACE
from tests.support.fakes.rollout_desk import laptop
from tests.support.fakes.sandboxed import ByHand
from tests.support.fakes.typed import Prompt

FORGED = "ready:"
HOSTILE = f"a\x1b]0;t\x07\x1b[2J\r\n{FORGED}\n\x85{FORGED}\u2028{FORGED}\x9b31m\u202eb\u2066\x7f\ud800\t\x00c"
DRIVER = {"version": HOSTILE, "root": HOSTILE, "modules": [HOSTILE], "digest": HOSTILE}
OWNER = {"pod": HOSTILE, "uid": "00000000-dead-dead-dead-000000000000"}
JOURNAL: dict[str, Any] = {"v": 1, "owner": OWNER, "labels": {}, "cordoned": False, "driver": DRIVER}
JOURNAL |= {**dict.fromkeys(("bootId", "step", "begin"), HOSTILE), "services": [HOSTILE], "removed": [HOSTILE]}
OUTCOME = {"schema": 1, "what": HOSTILE, "exit": 5, "step": HOSTILE, "digest": HOSTILE, "time": "2026-01-01T00:00:00Z"}


def escaped(text: str) -> None:
    """Raise AssertionError if `text` has a control character or a forged line."""
    assert {letter for letter in text if not letter.isprintable() and letter != "\n"} == set()
    assert not [line for line in text.splitlines() if line.strip().startswith(FORGED)]


@pytest.fixture
def node(debug: ByHand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ByHand:
    """A node on which whatever can be written is hostile."""
    monkeypatch.setenv("TERMINATION_LOG", str(tmp_path / "termination-log"))
    (tmp_path / "termination-log").touch()
    tree, profile = debug.tree, debug.tree.profile
    tree.hold_device_by(4242, HOSTILE.replace("\x00", "").replace("\ud800", ""))
    for path in filter(None, (profile.paths.state_file, profile.paths.health_record, profile.paths.reboot_marker)):
        file = tree.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(HOSTILE, errors="replace")
    tool = tree.root / NEW_ROOT.lstrip("/") / "usr/bin/rbln-smi"
    devices = [{"name": HOSTILE, "status": HOSTILE, "pci": {"bus_id": HOSTILE}}]
    tool.write_text(f"#!/bin/sh\ncat <<'EOF'\n{json.dumps({'devices': devices})}\nEOF\n")
    return debug


def _spoil_node(found: ByHand, journal: str) -> None:
    keys = found.tree.profile.keys

    def change(node: dict[str, Any]) -> dict[str, Any]:
        metadata = node["metadata"]
        there = {key: HOSTILE for key in asdict(keys).values() if type(key) is str and "/" in key}
        notes = {**metadata.get("annotations", {}), **there}
        labels = {**metadata["labels"], keys.state: "failed"}
        notes |= {keys.journal: journal, keys.last_outcome: json.dumps(OUTCOME)}
        return {**node, "metadata": {**metadata, "annotations": notes, "labels": labels}}

    found.cluster.store.patch("nodes", NODE, change)


NODE_COMMANDS = (
    *("status --probe", "plan", "plan --mode vfio", "preflight", "holders", "health-watch --once"),
    *("restore --dry-run", "restore --ignore-journal --dry-run", "restore", "restore --ignore-journal"),
    "reconcile-driver-state --dry-run",
)


@pytest.mark.shares(3)
@pytest.mark.parametrize("command", NODE_COMMANDS)
def test_a_command_on_a_node_escapes_foreign_words(command: str, node: ByHand, tmp_path: Path, prompt: Prompt) -> None:
    for journal in (json.dumps(JOURNAL), HOSTILE):
        for form in ("text", "json"):
            _spoil_node(node, journal)
            _, out, err = prompt(f"{command} -o {form}")
            assert out + err
            escaped(out + err)
        escaped((tmp_path / "termination-log").read_text())
    for event in node.cluster.store.list_objects("events")[0]:
        escaped(event["message"])


@pytest.mark.parametrize("wave", ["canary", HOSTILE], ids=["a rollout", "a spec that is none"])
def test_commands_about_rollouts_escape_foreign_words(
    wave: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with laptop(tmp_path, monkeypatch, capfd) as desk:
        desk.add_lease(HOSTILE, HOSTILE)
        desk.scene.set_driver(HOSTILE)

        def spoil_notes(node: dict[str, Any]) -> dict[str, Any]:
            notes = dict.fromkeys(node["metadata"].get("annotations", {}), HOSTILE)
            return {**node, "metadata": {**node["metadata"], "annotations": notes}}

        def spoil(rollout: dict[str, Any]) -> dict[str, Any]:
            entry = {"revision": HOSTILE, "began": "2026-01-01T00:00:00Z", "outcome": HOSTILE}
            status = {**rollout["status"], "history": [entry], "failedRevisions": [HOSTILE], "goodRevision": HOSTILE}
            return {**rollout, "spec": {**rollout["spec"], "waves": [{"name": wave}]}, "status": status}

        desk.scene.store.patch("nodes", "node-0", spoil_notes)
        desk.scene.store.patch(PLURAL, "driver", spoil, namespace=NAMESPACE)
        for words in ("status", "plan", "history", "pause", "resume", "approve", f"retry {HOSTILE}", "status no"):
            for form in ("text", "json"):
                _, out, err = desk.says(*words.split(" "), "-o", form)
                assert out + err
                escaped(out + err)
