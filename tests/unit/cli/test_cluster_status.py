"""`status --all`: the nodes of a cluster, of all vendors, with what needs attention first; `status NODE`: one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from driver_manager.cli.cluster_status import cluster_text
from driver_manager.cli.options import fitted
from driver_manager.domain import journal, node_state
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.journal import Journal, Owner
from driver_manager.domain.node_state import LastOutcome, NodeState
from driver_manager.domain.wire import written_time
from driver_manager.profiles import builtin
from driver_manager.sandbox.apiserver import ApiServer, Deny, Store
from tests.support.fakes.typed import Prompt

Add = Callable[..., None]
NOW_S = time.time()
SINCE = written_time(NOW_S - 7200.0)
LONG = "pods would not leave: jobs/train-0 is protected by a PodDisruptionBudget that allows no disruption"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer(Store()) as found:
        (tmp_path / "kubeconfig").write_text(json.dumps(found.kubeconfig()))
        for name, value in (("KUBECONFIG", f"{tmp_path}/kubeconfig"), ("LOG_FORMAT", "text"), ("HOME", f"{tmp_path}")):
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture
def add(server: ApiServer) -> Add:
    """Adds a Node that shows a state, and how its last run ended."""

    def made(name: str, vendor: str, state: NodeState | None, code: int = 0, what: str = "done", **more: Any) -> None:
        keys, labels, notes = builtin()[vendor].keys, dict(more.get("labels", {})), dict(more.get("notes", {}))
        if state is not None:
            outcome = LastOutcome(state, code, what, "Make room." if code else "", ended=SINCE, since=SINCE)
            labels |= {keys.state: state.value, keys.version: more.get("version", "2.0.1")}
            notes |= {keys.last_outcome: node_state.encode(outcome)}
        if "begin" in more:
            notes[keys.journal] = journal.encode(Journal(Owner("npu/driver-x", "uid"), "b", begin=more["begin"]))
        ready = [{"type": "Ready", "status": more.get("ready", "True")}]
        metadata = {"name": name, "labels": labels, "annotations": notes}
        status = {"conditions": ready, "nodeInfo": {"machineID": "another", "bootID": "another"}}
        server.store.create("nodes", {"metadata": metadata, "status": status})

    return made


def test_all_vendors_are_shown_with_what_needs_attention_first(server: ApiServer, add: Add, prompt: Prompt) -> None:
    add("a-1", "rebellions", NodeState.READY)
    add("a-2", "nvidia", NodeState.FAILED, 3, LONG)
    add("a-3", "ascend", NodeState.REBOOT_REQUIRED, 9, "a reboot is required")
    add("a-4", "rebellions", NodeState.HELD, 5, "no module", begin=SINCE)
    add("a-5", "rebellions", NodeState.UPGRADING, begin=written_time(NOW_S - 60.0))
    add("a-6", "rebellions", NodeState.UPGRADING, begin=SINCE)
    add("a-7", "furiosa", NodeState.READY, ready="False")
    add("a-8", "rebellions", None, labels={"rebellions.ai/npu.deploy.driver": "true"})
    add("plain", "rebellions", None)
    found = prompt.shows("cluster", "status --all")
    assert [one["node"] for one in found["nodes"]] == ["a-4", "a-2", "a-3", "a-6", "a-7", "a-5", "a-8", "a-1"]
    assert [one["node"] for one in found["nodes"] if one["needsAttention"]] == ["a-4", "a-2", "a-3", "a-6", "a-7"]
    assert (found["total"], found["needAttention"], found["states"]["unknown"]) == (8, 5, 1)
    by_name = {one["node"]: one for one in found["nodes"]}
    assert by_name["a-2"]["reason"] == f"exit 3: {LONG}"
    assert (by_name["a-2"]["since"], by_name["a-2"]["exitCode"]) == (SINCE, 3)
    assert "approve" in by_name["a-3"]["remedy"].lower()
    assert by_name["a-6"]["reason"].startswith("it takes long; pod npu/driver-x has taken the node")
    assert by_name["a-7"]["reason"] == "the Node is not Ready; done"
    of_one = prompt.shows("cluster", "status --all --profile ascend")["nodes"]
    assert [one["node"] for one in of_one] == ["a-3"]
    assert {(one.verb, one.resource) for one in server.requests} == {("list", "nodes")}


def test_a_node_with_two_vendors_has_a_row_for_each(server: ApiServer, add: Add, prompt: Prompt) -> None:
    add("both", "rebellions", NodeState.READY, labels={builtin()["nvidia"].keys.state: "wedged"})
    found = [(one["profile"], one["state"]) for one in prompt.shows("cluster", "status --all")["nodes"]]
    assert found == [("nvidia", "wedged"), ("rebellions", "ready")]
    server.deny.append(Deny("list", "nodes"))
    assert "list nodes" in prompt.errors("status --all", code=ExitCode.API_REFUSED), "a missing right is named"


DRIVER = {"labels": {"rebellions.ai/npu.deploy.driver": "true"}}


def test_one_node_is_shown_from_afar_as_the_api_server_has_it(server: ApiServer, add: Add, prompt: Prompt) -> None:
    add("a-1", "rebellions", NodeState.READY, **DRIVER)
    add("a-2", "rebellions", NodeState.FAILED, 3, LONG, **DRIVER)
    ready, failed = (prompt.shows("status", f"status {words}") for words in ("a-1", "a-2 --node-name a-1"))
    shown = [(found["node"], found["state"], found["since"]) for found in (ready, failed)]
    assert (shown, ready["attention"]) == ([("a-1", "ready", SINCE), ("a-2", "failed", SINCE)], [])
    assert [(found["what"], found["remedy"]) for found in failed["attention"]] == [(LONG, "Make room.")]
    assert (failed["host"], failed["next"]["decision"]) == ({"problem": "not on the node"}, "unknown")
    assert {request.verb for request in server.requests} == {"get", "list"}
    _, out, _ = prompt("status a-1")
    assert "devices   unknown: the host is not read\n" in out
    assert "loads" not in out, "the options of a laptop are not those of the node"


def test_one_node_is_an_error_where_it_cannot_be_read(server: ApiServer, add: Add, prompt: Prompt) -> None:
    add("a-1", "rebellions", NodeState.READY, **DRIVER)
    for words, what in (("a-1 --all", "a node and --all cannot be used together"), ("a-9", "node a-9 does not exist")):
        assert what in prompt.errors(f"status {words}")
    server.deny.append(Deny("list", "pods"))
    assert [found["kind"] for found in prompt.shows("status", "status a-1")["attention"]] == ["access"]
    server.deny.append(Deny("get", "nodes"))
    assert prompt("status a-1 --profile rebellions")[:2] == (ExitCode.API_REFUSED, "")


def rows(count: int, **more: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"profile": "nvidia", "state": "ready", "version": "580.1", "reason": "done"}
    known |= {"since": SINCE, "needsAttention": False, "remedy": "", "cordoned": False, **more}
    return {"total": count, "nodes": [{"node": f"node-{number}", **known} for number in range(count)]}


@pytest.mark.parametrize("columns", [60, 80, 120, 0])
def test_the_reason_is_whole_and_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cluster_status", "options"):
        monkeypatch.setattr(f"driver_manager.cli.{module}.columns_of", lambda _: columns)
    body = rows(1, state="failed", reason=LONG, needsAttention=True, remedy="x")
    text = click.unstyle(fitted(cluster_text(body, NOW_S)))
    lines = text.split("\n")
    assert max(map(len, lines[2:-2])) <= (columns or 400)
    assert (lines[0], LONG in " ".join(text.split()), "2 h ago" in text) == ("1 node: 1 needs attention", True, True)


@pytest.mark.parametrize(("since", "shown"), [("z" * 300, "-"), (None, "-"), ("9999-01-01T00:00:00Z",) * 2])
def test_a_time_that_is_none_is_not_shown(since: str | None, shown: str) -> None:
    assert cluster_text(rows(1, since=since, version="9"), NOW_S).splitlines()[-1].split()[4:] == [shown, "done"]


def test_a_reason_without_end_does_not_hide_the_other_nodes_and_many_without_problems_are_one_row() -> None:
    text = cluster_text(rows(2, state="failed", reason="why " * 50_000, needsAttention=True), NOW_S)
    assert len(text) < 3000
    text = click.unstyle(cluster_text(rows(5000), NOW_S))
    assert ("5000 nodes  nvidia" in text, len(text.split("\n")) < 10) == (True, True)
    assert cluster_text(rows(0), NOW_S) == "no node has a label of a known profile"
