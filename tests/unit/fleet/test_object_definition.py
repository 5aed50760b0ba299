"""The definition that the API server checks by, and the reader, are of one mind: both are made from one table."""

from __future__ import annotations

import copy
import json
from typing import Any

import fastjsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.fleet.spec import RolloutPolicy, read
from driver_manager.domain.schema import fields_of
from tests.support.docs.rollout_object import definition
from tests.support.docs.spec_fields import default, entries_of
from tests.support.fakes.rollout_objects import BAD, FULL, Bad, Json, rollout, zones
from tests.support.fakes.rollout_objects import SPEC as SHORTEST

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


def defaulted(schema: Json, value: Any) -> Any:
    """`value` with the defaults of a structural schema (apiextensions-apiserver, schema/defaulting)."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        absent = {key: one["default"] for key, one in properties.items() if "default" in one and key not in value}
        whole = {**value, **copy.deepcopy(absent)}
        return {key: defaulted(properties.get(key, {}), inner) for key, inner in whole.items()}
    return [defaulted(schema.get("items", {}), one) for one in value] if isinstance(value, list) else value


def schemas(schema: Any) -> list[Json]:
    """Every schema in a schema."""
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


@pytest.mark.parametrize("spec", [SHORTEST, FULL], ids=["shortest", "full"])
def test_the_defaults_of_the_api_server_are_those_of_the_reader(spec: Json) -> None:
    filled = defaulted(WHOLE, spec)
    assert filled.keys() >= {key for key, one in fields_of(RolloutPolicy).items() if default(one) is not None}
    assert read(rollout(filled), zones).policy == read(rollout(spec), zones).policy


def test_the_defaults_and_the_examples_are_valid() -> None:
    assert is_valid(defaulted(WHOLE, SHORTEST))
    assert is_valid(defaulted(WHOLE, FULL))


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_a_bad_value_is_refused_by_the_schema_where_a_schema_can(bad: Bad) -> None:
    assert is_valid(bad.spec) is not bool(bad.server)


@given(st.data())
def test_what_the_reader_takes_the_schema_takes(data: st.DataObject) -> None:
    texts = st.sampled_from(["", "a", "rack", "10%", "30s", "a=b", "Sat 02:00-03:00", "UTC", "True", "off", "hold"])
    values = texts | st.integers(-2, 200) | st.booleans()
    wave = st.fixed_dictionaries(
        {"name": texts}, optional=dict.fromkeys(("nodeSelector", "count", "percent", "soak", "approval"), values)
    )
    optional = {key: values for key, one in fields_of(RolloutPolicy).items() if entries_of(one) is None}
    spec = data.draw(st.fixed_dictionaries({}, optional={**optional, "waves": st.lists(wave, max_size=3)}))
    if read(rollout(spec), zones).policy is not None:
        assert is_valid(spec)


def test_every_text_and_list_of_the_spec_is_bounded() -> None:
    for schema in schemas(WHOLE):
        if schema.get("type") == "string":
            assert "enum" in schema or "maxLength" in schema, schema
        if schema.get("type") == "array":
            assert "maxItems" in schema, schema


def test_everything_has_a_description_and_kubectl_can_keep_the_definition_in_an_annotation() -> None:
    properties = [one for schema in schemas(WHOLE) for one in schema.get("properties", {}).values()]
    assert all(one["description"].endswith(".") for one in properties)
    assert len(json.dumps(definition())) < 64 * 1024
