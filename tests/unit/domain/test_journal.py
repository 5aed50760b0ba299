"""Every journal ever written stays readable; anything else is refused with one exception, never with a surprise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain import host_record
from driver_manager.domain import journal as journals
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.journal import Journal, JournalUnreadable, OldDriver, Owner, encode
from driver_manager.domain.pci import MOST_VIRTUAL, Binding
from tests.support.fakes.windows import WINDOWS

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("journal-v*.json"))
GOOD: dict[str, Any] = json.loads(GOLDEN[0].read_text())
TEXT = st.text(max_size=20)
COUNT = st.integers(0, 2**63)
PROCESS: dict[str, Any] = {"pid": st.integers(1, 2**63), "start_ticks": COUNT, "pid_namespace": COUNT, "boot_id": TEXT}
POD: dict[str, Any] = {"pod": TEXT, "pod_uid": st.text(min_size=1, max_size=20)}
OWNERS = st.builds(Owner, **POD) | st.builds(Owner, **PROCESS) | st.builds(Owner, **POD, **PROCESS)
JOURNALS = st.builds(
    Journal,
    owner=OWNERS,
    boot_id=TEXT,
    labels=st.dictionaries(TEXT, TEXT, max_size=4),
    cordoned=st.booleans(),
    services=st.lists(TEXT, max_size=2).map(tuple),
    removed=st.lists(TEXT, max_size=2).map(tuple),
    gates=st.dictionaries(TEXT, st.none() | TEXT, max_size=2),
    cordon_manager=TEXT,
    node_uid=TEXT,
    step=TEXT,
    begin=TEXT,
    window=st.none() | WINDOWS,
    devices=st.lists(
        st.builds(Binding, address=TEXT, driver=TEXT, override=TEXT, virtual_count=st.integers(0, MOST_VIRTUAL)),
        max_size=3,
    ).map(tuple),
    driver=st.none()
    | st.builds(
        OldDriver,
        version=TEXT,
        root=TEXT,
        modules=st.lists(TEXT, max_size=3).map(tuple),
        digest=TEXT,
        parameters=st.dictionaries(TEXT, TEXT, max_size=2),
    ),
)


def decode(text: str) -> Journal:
    """What the journal in `text` claims."""
    return journals.decode(text).claims


@given(JOURNALS, st.text(min_size=1))
def test_with_a_record_on_the_host_the_node_has_facts_only(journal: Journal, run: str) -> None:
    assert decode(encode(journal)) == journal
    text = encode(replace(journal, record=run))
    found = decode(text)
    driver = OldDriver(journal.driver.version) if journal.driver is not None else None
    assert found == replace(journal, record=run, services=(), removed=(), devices=(), driver=driver)
    assert json.loads(text)["v"] == 3
    record = host_record.of(replace(journal, record=run))
    assert host_record.decode(host_record.encode(record)) == record
    assert host_record.record_of_boot(host_record.encode(record), journal.boot_id) == record
    assert host_record.record_of_boot(host_record.encode(record), f"{journal.boot_id}x") is None
    assert host_record.parted([record], run) == (record, ())
    assert host_record.parted([record], f"{run}x") == (None, (record,))


def test_a_window_that_is_not_understood_costs_no_label() -> None:
    body = json.loads((GOLDEN[0].parent / "journal-v1-window.json").read_text())
    for garbage in (7, "soon", {"began": "soon"}, {"began": 1.0, "seconds": 1.0}):
        found = decode(json.dumps({**body, "window": garbage}))
        assert (found.window, found.labels) == (None, decode(json.dumps(body)).labels), garbage


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_every_journal_ever_written_is_read_and_loses_nothing_when_written_again(path: Path) -> None:
    text = path.read_text()
    journal, then = decode(text), json.loads(text)
    assert journals.decode(text).refused == ((journals.KMM_REMOVED,) if then.pop("kmm", None) else ())
    assert decode(encode(journal)) == journal
    assert contains(json.loads(encode(journal)), then)


def contains(now: Any, then: Any) -> bool:
    """Whether `now` has everything that `then` had; newer writers may have added fields."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(key in now and contains(now[key], then[key]) for key in then)
    return bool(now == then)


BOOT = "6f1b1c3e-0000-4000-8000-000000000001"
POD_OWNER = Owner(pod="rbln-system/driver-x7k2p", pod_uid="0b0d7f0e-0000-4000-8000-000000000002")
DRIVER = OldDriver("1.2.91", "/run/rbln/driver", ("rebellions", "rebellions_core"))
PLUGIN = {"rebellions.ai/npu.deploy.device-plugin": "true"}


def test_a_golden_journal_means_what_it_did() -> None:
    process = Owner(pid=4711, start_ticks=123456, pid_namespace=4026531836, boot_id=BOOT)
    both = replace(POD_OWNER, pid=7, start_ticks=123456, pid_namespace=4026532501, boot_id=BOOT)
    modules = ("rebellions_peer", "rebellions", "rebellions_core")
    labels = {**PLUGIN, "rebellions.ai/npu.deploy.custom": "gold"}
    older = OldDriver("1.2.91", "/opt/old", modules, "ab12")
    means = {
        "v1-pod": Journal(POD_OWNER, BOOT, labels, cordoned=True, driver=DRIVER),
        "v1-process": Journal(process, BOOT),
        "v1-pod-process": Journal(both, BOOT, PLUGIN, cordoned=True, driver=older),
    }
    assert {name: decode((GOLDEN[0].parent / f"journal-{name}.json").read_text()) for name in means} == means


def test_the_golden_journals_of_a_cordon_and_of_a_cleared_node_mean_what_they_did() -> None:
    managers = {path.stem: decode(path.read_text()).cordon_manager for path in GOLDEN}
    assert managers["journal-v1-cordon-manager"] == "driver-manager"
    named = {path.stem for path in GOLDEN if "cordonManager" in json.loads(path.read_text())}
    assert {name for name, manager in managers.items() if manager} <= named
    found = decode((GOLDEN[0].parent / "journal-v1-cleared.json").read_text())
    assert (found.cleared, found.step) == ("7d9c5b8f6", "mark cleared")


def test_a_missing_field_is_named_and_an_unknown_extra_one_is_ignored() -> None:
    for field in ("bootId", "labels", "cordoned"):
        with pytest.raises(JournalUnreadable, match=f"{field} is missing") as caught:
            decode(json.dumps({key: value for key, value in GOOD.items() if key != field}))
        assert caught.value.exit_code is ExitCode.USAGE
        assert "--ignore-journal" in caught.value.remedy
    assert decode(json.dumps(GOOD | {"later": 1})) == decode(json.dumps(GOOD))
    with pytest.raises(JournalUnreadable, match=r"gates\.xxx") as caught:
        journals.decode(json.dumps(GOOD | {"gates": {"x" * 100_000: 5}}))
    assert len(caught.value.what) < 300, "a name that is too long is cut"


def test_an_owner_that_is_none_costs_the_owner_alone() -> None:
    rows: list[tuple[Any, str]] = [
        ({"pid": True, "startTicks": 1, "pidNamespace": 1, "bootId": "b"}, "pid"),
        *(({"uid": 1, "pod": "p"}, "uid"), ({"uid": "u", "pod": "p", "pid": "7"}, "pid")),
        *(({"uid": "u", "pod": "p", "pid": 7}, "startTicks"), ({}, "pid"), ([], "owner"), (None, "owner")),
    ]
    for owner, named in rows:
        found = journals.decode(json.dumps(GOOD | {"owner": owner}))
        assert found.claims == replace(decode(json.dumps(GOOD)), owner=Owner())
        assert [(one.field, named in one.why) for one in found.refused] == [("owner", True)], (owner, found.refused)


def test_an_owner_is_named_for_people() -> None:
    owners = (Owner("ns/a", "u1"), Owner("ns/a", "u1", pid=7), Owner(pid=7))
    assert [str(one) for one in owners] == ["pod ns/a", "pod ns/a", "process 7 run by hand"]


def test_a_record_names_the_process_of_its_run_and_no_other_name_is_one() -> None:
    owner = Owner(pid=7, start_ticks=123, pid_namespace=4026532501, boot_id="boot-1")
    assert host_record.HostRecord("boot-1", owner.process).owner == owner
    for run in ("", "run-1", "boot-1:1:7", "boot-1:1:7:x", "boot-1:1:-7:9", ":1:7:9", f"b:1:{'9' * 99}:9"):
        assert host_record.HostRecord("boot-1", run).owner is None, run
