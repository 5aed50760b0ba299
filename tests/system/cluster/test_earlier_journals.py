"""A node that an earlier version has taken is given back by this one: by its run, and by hand.

The journals are those of `tests/unit/golden`, every form ever written; the Node is as that version left it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from driver_manager.domain.node import FIELD_MANAGER
from tests.support.control_plane.api import MERGE_PATCH
from tests.support.control_plane.kubelet import NodeFactory, OperandsFactory
from tests.support.control_plane.runner import (
    CORDON,
    JOURNAL,
    NEW,
    NEW_DIGEST,
    OLD,
    PREFIX,
    CommandRunner,
    assert_untouched,
    node_of,
)
from tests.support.control_plane.servers import ControlPlane, User

GOLDEN = sorted((Path(__file__).parents[2] / "unit/golden").glob("journal-v*.json"))
PAUSED = "paused-for-driver-upgrade"
LABELS = {f"{PREFIX}device-plugin": "true", f"{PREFIX}custom": "gold"}
"""What the node's labels are while nobody has taken it."""


def taken(runner: CommandRunner, path: Path) -> dict[str, str]:
    """Make the Node as the version that wrote the journal left it in this boot; its labels before."""
    node = node_of(runner)
    journal: dict[str, Any] = json.loads(path.read_text())
    node.set_labels(journal["labels"])
    before = node.labels()
    journal["bootId"] = runner.tree.boot_id
    if "nodeUid" in journal:
        journal["nodeUid"] = node.read()["metadata"]["uid"]
    labels = {key: PAUSED if value == "true" else f"{value}_{PAUSED}" for key, value in journal["labels"].items()}
    notes = {JOURNAL: json.dumps(journal), **({CORDON: "true"} if journal["cordoned"] else {})}
    spec = {"spec": {"unschedulable": True}} if journal["cordoned"] else {}
    body = {"metadata": {"labels": labels, "annotations": notes}, **spec}
    node.api.request("PATCH", node.path, body, params={"fieldManager": FIELD_MANAGER}, content_type=MERGE_PATCH)
    return before


@pytest.fixture
def runner(control_plane: ControlPlane, agent_with_events: User, tmp_path: Path, node: NodeFactory) -> CommandRunner:
    """A node with the old driver loaded and the new one at hand."""
    made = CommandRunner(control_plane, agent_with_events, tmp_path).with_upgrade()
    made.node = node(LABELS, boot_id=made.tree.boot_id)
    return made


@pytest.mark.shares(6)
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_run_goes_on_from_every_journal_ever_written(
    runner: CommandRunner, operands: OperandsFactory, path: Path
) -> None:
    node = node_of(runner)
    operands(node, ("device-plugin",))
    labels = taken(runner, path)
    ended = runner.reconcile()
    assert ended.code == 0, ended.err
    assert (runner.tree.driver_version, runner.tree.digest) == (NEW, NEW_DIGEST)
    assert_untouched(runner, labels)


def test_restore_gives_back_what_every_journal_ever_written_names(runner: CommandRunner) -> None:
    node = node_of(runner)
    for path in GOLDEN:
        labels = taken(runner, path)
        assert JOURNAL in node.annotations()
        ended = runner.run("restore")
        assert ended.code == 0, f"{path.stem}: {ended.err}"
        assert runner.tree.driver_version == OLD
        assert node.labels() == labels, path.stem
        assert not {JOURNAL, CORDON} & node.annotations().keys(), path.stem
        assert "unschedulable" not in node.read()["spec"], path.stem
