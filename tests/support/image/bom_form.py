"""Checks a bill of materials against the standard's own JSON schema, which cyclonedx-python-lib brings."""

from __future__ import annotations

import importlib.resources
import json
from typing import Any

import fastjsonschema
from packageurl import PackageURL

SCHEMAS = importlib.resources.files("cyclonedx.schema") / "_res"


def _schema(name: str) -> Any:
    return json.loads((SCHEMAS / name).read_text())


def _referred(uri: str) -> Any:
    return _schema(uri.rpartition("/")[2])


def refuse_malformed(document: dict[str, Any]) -> None:
    """AssertionError unless `document` is a CycloneDX 1.5 document with package URLs that can be read."""
    try:
        validate = fastjsonschema.compile(
            _schema("bom-1.5.SNAPSHOT.schema.json"), handlers={"http": _referred}, use_default=False
        )
        validate(document)
    except fastjsonschema.JsonSchemaException as error:
        raise AssertionError(str(error)) from error
    for component in document["components"]:
        url = PackageURL.from_string(component["purl"])
        assert (url.name, url.version) == (component["name"], component["version"])
        assert url.to_string() == component["purl"]
