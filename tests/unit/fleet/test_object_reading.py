"""A DriverRollout is read as it was meant, or refused with one line for each bad value, by its definition too."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any
from zoneinfo import ZoneInfo

import fastjsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain import selectors
from driver_manager.domain.fleet import spec as records
from driver_manager.domain.reboot.maintenance_windows import parse_windows
from driver_manager.domain.schema import FieldType, fields_of
from tests.assurance.fuzz.target import assert_conforms
from tests.support.docs.rollout_object import definition
from tests.support.docs.spec_fields import MEANINGS, choices, default, every_field
from tests.support.fakes.rollout_objects import BAD, BAD_WISHES, BESIDE, BLANK, FULL, Bad, Json, but, rollout, zones
from tests.support.fakes.rollout_objects import SPEC as SHORTEST

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["1", "5m", "a=b", "UTC"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.sampled_from(sorted(FULL)), inner),
    max_leaves=12,
)
TEXTS = ("", "a", "rack", "10%", "30s", "a=b,=", "Sat 02:00-03:00", "UTC", "True", "off", "\u2028")
SHORT_TEXTS = st.sampled_from(TEXTS)


def example(path: str) -> Any:
    """An example, None for an object, a list and a removed field."""
    return MEANINGS.get(path, ("", None))[1]


def near(record: type, at: str = "") -> st.SearchStrategy[Json]:
    """Objects of this record, most of them good."""
    fields = {key: value_near(one, at + key) for key, one in fields_of(record).items()}
    return st.fixed_dictionaries({}, optional=fields)


def value_near(one: FieldType, path: str) -> st.SearchStrategy[Any]:
    if one.rule.removed:
        return SHORT_TEXTS
    if one.item is not None:
        return st.lists(near(one.item.kind, f"{path}[]."), max_size=3) | st.text(max_size=2)
    if one.is_record:
        return near(one.kind, f"{path}.") | st.integers()
    good = [value for value in (example(path), default(one)) if value is not None]
    return st.sampled_from([*good, *choices(one)]) | SHORT_TEXTS | st.integers(-2, 200) | st.booleans()


def policy_of(spec: Json) -> records.RolloutPolicy:
    body = rollout(spec)
    before = copy.deepcopy(body)
    found = records.read(body, zones)
    assert body == before, "reading changes nothing"
    assert found.problems == ()
    assert found.policy is not None
    return found.policy


def test_an_absent_or_blank_field_has_the_policys_default() -> None:
    assert policy_of(SHORTEST) == records.RolloutPolicy("driver")
    assert policy_of(BLANK) == records.RolloutPolicy("driver", waves=(records.Wave("rest"),))


def test_every_field_is_read() -> None:
    assert policy_of(FULL) == records.RolloutPolicy(
        daemon_set="driver",
        paused=True,
        max_parallel=0,
        max_unavailable=records.Amount(25, is_percent=True),
        waves=(
            records.Wave("canary", selectors.parse("rack=a,tier!=prod"), count=2, soak_s=5400.0, needs_approval=True),
            records.Wave("half", percent=50, soak_s=90.0),
            records.Wave("rest"),
        ),
        units=records.Units("topology.kubernetes.io/rack", records.UnitMode.TOGETHER),
        schedule=parse_windows("Sat,Sun 02:00-06:00; Mon-Fri 22:00-04:00", ZoneInfo("Europe/Berlin")),
        timezone=ZoneInfo("Europe/Berlin"),
        gates=records.Gates(
            pods=(
                records.PodGate(namespace="monitoring", selector=selectors.parse("app=validator")),
                records.PodGate(namespace="rbln-system", selector=selectors.parse("app in (a,b)")),
            ),
            conditions=(records.ConditionGate("NetworkReady"), records.ConditionGate("example.com/Broken", "False")),
        ),
        failure_threshold=3,
        on_halt=records.OnHalt.UNDO,
        node_timeout_s=3600.0,
        validation_timeout_s=90.0,
        approves_reboots=True,
        preflight=records.PreflightMode.REQUIRE,
    )


def with_example(path: str) -> Json:
    """A spec that says, beside what it must, this one field as in its example."""
    value = example(path)
    names = path.split(".")
    for name, inner in reversed(list(itertools.pairwise(names))):
        entry = {**BESIDE.get(name.removesuffix("[]"), {}), inner.removesuffix("[]"): value}
        value = [entry] if name.endswith("[]") else entry
    return {**SHORTEST, "daemonSet": "other", names[0].removesuffix("[]"): value}


def test_each_field_changes_the_policy_in_a_way_of_its_own() -> None:
    leaves = [path for path, _ in every_field() if example(path) is not None]
    changed = {path: repr(policy_of(with_example(path))) for path in leaves}
    changed["none"] = repr(policy_of({**SHORTEST, "daemonSet": "other"}))
    assert len(set(changed.values())) == len(changed)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_a_bad_value_is_one_line_with_field_value_and_expectation(bad: Bad) -> None:
    found = records.read(rollout(bad.spec), zones)
    assert found.policy is None
    assert found.problems == (bad.reader,)


def test_all_problems_are_reported_at_once() -> None:
    spec = but(paused="no", units={"mode": "x"}, waves=[{"name": "a", "count": 0}, {"soak": "x"}], gates=7)
    problems = records.read(rollout(spec, undo=""), zones).problems
    *fields, annotation = [problem.partition(" ")[0] for problem in problems]
    of_waves = ["spec.waves[0].count", "spec.waves[1].name", "spec.waves[1].soak"]
    assert fields == ["spec.paused", *of_waves, "spec.units.topologyKey", "spec.units.mode", "spec.gates"]
    assert annotation == "the"


NO_NOTES = {"metadata": {"annotations": 7}, "spec": SHORTEST}


@pytest.mark.parametrize("body", [None, [], "rollout", 7, {}, {"spec": None}, {"metadata": [], "spec": 1}, NO_NOTES])
def test_what_is_no_rollout_at_all_is_refused(body: Any) -> None:
    found = records.read(body, zones)
    assert found.policy is None
    assert found.problems


def test_wishes_are_read_from_annotations() -> None:
    for notes, wishes in (
        ({}, {}),
        ({"approved": "5d8c9f:2"}, {"approved_for": "5d8c9f", "approved": 2}),
        ({"retry": "5d8c9f"}, {"retry": "5d8c9f"}),
        ({"retry": "5d8c9f:7f3a"}, {"retry": "5d8c9f", "retry_id": "7f3a"}),
        ({"undo": "7f3a"}, {"undo": "7f3a"}),
        ({"undo": "2026-01-02T03.04:5d8c9f"}, {"undo": "2026-01-02T03.04", "undo_to": "5d8c9f"}),
        ({"someone-elses": "x"}, {}),
    ):
        assert records.read(rollout(SHORTEST, **notes), zones).wishes == records.Requests(**wishes)


@pytest.mark.parametrize(("key", "value", "expected"), BAD_WISHES)
def test_a_wish_that_cannot_be_read_is_a_problem_and_not_no_wish(key: str, value: Any, expected: str) -> None:
    found = records.read(rollout(SHORTEST, **{key.partition("/")[2]: value}), zones)
    assert found.policy is None
    assert found.problems == (f"the annotation {key} is {value!r}, expected {expected}",)


def test_who_the_object_is() -> None:
    body = rollout(SHORTEST)
    moment = "2026-01-02T03:04:05Z"
    body["metadata"] |= {"uid": "u", "resourceVersion": "7", "generation": 3, "creationTimestamp": moment}
    body["status"] = {"goodRevision": "a"}
    found = records.read(body, zones)
    assert (found.namespace, found.name, found.uid, found.resource_version) == ("rbln-system", "drivers", "u", "7")
    assert (found.generation, found.created_s, found.key) == (3, 1767323045.0, "rbln-system/drivers")
    assert (found.memory, found.status) == (records.RolloutState(good="a"), {"goodRevision": "a"})
    assert not found.is_deleting
    body["metadata"]["deletionTimestamp"] = moment
    assert records.read(body, zones).is_deleting


def test_what_cannot_be_read_of_a_status_is_as_if_it_were_not_there() -> None:
    past = {"revision": "a", "began": "2026-01-02T03:04:05Z", "ended": 7, "outcome": []}
    status = {
        "targetRevision": 1,
        "goodRevision": "g",
        "failedRevisions": ["a", 2, "b"],
        "undone": None,
        "history": [past, 3, {"revision": "b"}, {"revision": "", "began": past["began"]}],
    }
    assert records.memory_of(status) == records.RolloutState(
        good="g", failed=("a", "b"), history=(records.RevisionHistory("a", 1767323045.0),)
    )


@given(near(records.RolloutPolicy), st.dictionaries(st.sampled_from(["approved", "retry", "undo"]), SHORT_TEXTS | JSON))
def test_what_is_almost_a_rollout_is_a_policy_or_problems(spec: Json, annotations: Json) -> None:
    found = records.read(rollout({**SHORTEST, **spec}, **annotations), zones)
    assert (found.policy is None) == bool(found.problems)
    assert_conforms(found, records.RolloutObject)
    assert all(problem.isprintable() and len(problem) < 500 for problem in found.problems)


# the definition, by which the API server checks

WHOLE = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
INT_OR_STRING = "x-kubernetes-int-or-string"


def draft(schema: Any) -> Any:
    """The schema as a validator of JSON Schema understands it: defaults and descriptions mean nothing to one."""
    match schema:
        case dict():
            inner = {key: draft(value) for key, value in schema.items() if key not in ("default", "description")}
            return {**inner, "anyOf": [{"type": "integer"}, {"type": "string"}]} if INT_OR_STRING in inner else inner
        case list():
            return [draft(one) for one in schema]
    return schema


VALID = fastjsonschema.compile(draft(WHOLE))


def schemas(schema: Any) -> list[Json]:
    found = [schema]
    for inner in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])):
        found += schemas(inner)
    return found


def is_valid(spec: Any) -> bool:
    try:
        VALID(spec)
    except fastjsonschema.JsonSchemaException:
        return False
    return True


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_a_bad_value_is_refused_by_the_schema_where_a_schema_can(bad: Bad) -> None:
    assert is_valid(bad.spec) is not bool(bad.server)


@given(near(records.RolloutPolicy))
def test_what_the_reader_takes_the_schema_takes(spec: Json) -> None:
    if records.read(rollout({**SHORTEST, **spec}), zones).policy is not None:
        assert is_valid({**SHORTEST, **spec})


def test_everything_is_bounded_and_described_and_kubectl_can_keep_the_definition_in_an_annotation() -> None:
    for schema in schemas(WHOLE):
        assert schema.get("type") != "string" or schema.keys() & {"enum", "maxLength"}, schema
        assert schema.get("type") != "array" or "maxItems" in schema, schema
        assert all(one["description"].endswith(".") for one in schema.get("properties", {}).values())
    assert len(json.dumps(definition())) < 64 * 1024
