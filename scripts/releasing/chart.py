"""The Helm chart: its templates are generated from `deploy/`, for all vendors.

Values, their schema and the helpers of the templates in `deploy/charts/driver-manager` are written by hand, except the
names of variables in the schema. As a program it writes the chart; `--check` reports outdated files.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import yaml

from driver_manager.cli.main import cli
from driver_manager.domain.profile import RecoveryStep
from driver_manager.profiles import builtin
from scripts.releasing import kustomize, layers
from scripts.releasing.conditions import ALWAYS, REQUIRES, When
from scripts.releasing.kustomize import DEPLOY, OVERLAYS, Json

CHECKOUT = Path(__file__).parents[2]
CHART = CHECKOUT / "deploy/charts/driver-manager"
HEADER = "{{- /* Made from deploy/ by scripts/chart. */ -}}\n"

OPTIONAL = (
    *("rebooter-eviction", "safe-load", "clients", "recovery", "node-condition", "metrics", "openshift"),
    *("openshift-rebooter", "resource-quota", "network-policy", "rollout", "openshift-rollout", "admission-policy"),
)
"""The components that no overlay has, in the order in which they are applied."""

VENDOR, NAMESPACE, LABELS, NOTES = "at.vendor", "at.namespace", "at.labels", "at.annotations"
WORDS = {
    f"{VENDOR}-driver": '{{ include "driver-manager.fullname" . }}',
    VENDOR: "{{ .Values.vendor }}",
    NAMESPACE: "{{ .Release.Namespace }}",
    "driver-manager:at.tag": '{{ include "driver-manager.image" . }}',
    "driver-manager-sample-driver:at.tag": '{{ include "driver-manager.driverImage" . }}',
}
"""Placeholders in the objects, and the template expressions that replace them."""

LABELLED = '{{{{- include "driver-manager.labels" . | nindent {} }}}}'

CONTAINERS = {
    "k8s-driver-manager": "manager",
    "driver": "driver",
    "health-watch": "healthWatch",
    "rebooter": "rebooter",
    "controller": "rollout",
}
"""The name of each container's own values."""

COMMANDS = {
    "manager": ("reconcile-driver-state",),
    "healthWatch": ("health-watch",),
    "rebooter": ("rebooter",),
    "rollout": ("rollout", "controller"),
}
"""The command of each container of driver-manager: the schema of its `env` has the variables that the command reads."""

NO_OPTIONS = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "LD_LIBRARY_PATH", "PATH", "SSL_CERT_FILE", "TZ"),
)
"""Further variables that these containers may have."""

PARTS = {"driver": "", "driver-rebooter": "rebooter", "driver-rollout": "rollout"}
"""For each workload, the value that has the values of its pods and of its account; "": they are at the top level."""

PROFILES = builtin()

Source = tuple[str, Json, When]
"""The chart's file for an object, the object or patch, and its condition."""


def offered() -> dict[str, dict[str, bool]]:
    """For each vendor the components that fit it: True if its overlay has the component."""
    found: dict[str, dict[str, bool]] = {}
    for vendor in OVERLAYS:
        body = kustomize.loaded(DEPLOY / "overlays" / vendor / "kustomization.yaml")[0]
        found[vendor] = {Path(name).name: True for name in body["components"]}
        found[vendor].setdefault("rebooter", False)
        profile = PROFILES[vendor]
        for component in OPTIONAL:
            lacks = (component == "safe-load" and not profile.keys.safe_load) or (
                component == "recovery" and not set(profile.recovery) - {RecoveryStep.REBOOT}
            )
            if not lacks:
                found[vendor][component] = False
    return found


def objects() -> dict[str, list[tuple[When, layers.Fields]]]:
    """The objects of each template with their conditions. Raises ValueError if a template cannot express them."""
    made: dict[str, list[tuple[When, layers.Fields]]] = {}
    known: dict[tuple[str, str], layers.Fields] = {}
    sources = list(_sources())
    bodies = _named([body for _, body, _ in sources])
    for (file, _, when), body in zip(sources, bodies, strict=True):
        key = (body["kind"], body["metadata"]["name"])
        if key in known:
            layers.lay(known[key], body, when)
        else:
            # The labels of Helm: of the objects, not of their pods.
            body["metadata"].setdefault("labels", {})[LABELS] = ""
            if body["kind"] == "ServiceAccount":
                body["metadata"][NOTES] = PARTS[key[1].removeprefix(f"{VENDOR}-")]
            known[key] = layers.lifted(body)
            made.setdefault(file, []).append((when, known[key]))
    return made


def _sources() -> Iterator[Source]:
    """Resources and patches in kustomize's order: the base, the components, the overlays."""
    yield from _resources("base", DEPLOY / "base", ALWAYS)
    offers = offered()
    for component in dict.fromkeys(name for names in offers.values() for name in names):
        when = When(having=frozenset({component, *REQUIRES.get(component, ())}))
        yield from _resources(component, DEPLOY / "components" / component, when)
    for vendor in OVERLAYS:
        for folder in ("", "rebooter", "rollout", "admission-policy"):
            for patch in _patches(DEPLOY / "overlays" / vendor / folder):
                yield "", patch, When(frozenset({vendor}))


def _resources(file: str, folder: Path, when: When) -> Iterator[Source]:
    body = kustomize.loaded(folder / "kustomization.yaml")[0]
    for name in body.get("resources", []):
        for one in kustomize.loaded(folder / name):
            if one["kind"] != "CustomResourceDefinition":
                yield file, one, when
    for patch in _patches(folder):
        yield "", patch, when


def _patches(folder: Path) -> list[Json]:
    if not folder.is_dir():
        return []
    body = kustomize.loaded(folder / "kustomization.yaml")[0]
    return [patch for one in body.get("patches", []) for patch in kustomize.loaded(folder / one["path"])]


def _named(bodies: list[Json]) -> list[Json]:
    """The objects with placeholders for prefix, namespace and images."""
    transformer = kustomize.loaded(DEPLOY / "overlays" / OVERLAYS[0] / "default-namespace.yaml")[0]
    transformer["metadata"]["namespace"] = NAMESPACE
    bodies = kustomize.in_namespace(kustomize.prefixed(bodies, f"{VENDOR}-"), transformer)
    for name in ("driver-manager", "driver-manager-sample-driver"):
        bodies = [kustomize.with_image(one, {"name": name, "newTag": "at.tag"}) for one in bodies]
    return [_with_vendor(one) for one in bodies]


def _with_vendor(body: Json) -> Json:
    """Replace the vendor in DRIVER_PROFILE and in the names of Lease and accounts: all have the same value then."""
    body = copy.deepcopy(body)
    if body["kind"] == "SecurityContextConstraints":
        body["metadata"].pop("namespace", None)
    for container in _containers(body):
        for one in container.get("env", []):
            if one["name"] == "DRIVER_PROFILE":
                one["value"] = VENDOR
    for one in body.get("subjects", []):
        one["name"] = re.sub(rf"^({'|'.join(OVERLAYS)})-driver", f"{VENDOR}-driver", one["name"])
    for rule in body.get("rules", []) if body["kind"] == "Role" else []:
        if "resourceNames" in rule:
            names = rule["resourceNames"]
            rule["resourceNames"] = [re.sub("(?<=^driver-manager-rollout-).+", VENDOR, name) for name in names]
    return body


def _containers(body: Json) -> list[Json]:
    spec = kustomize.pod_spec(body)
    return [*spec.get("initContainers", []), *spec.get("containers", [])]


def templates() -> dict[str, str]:
    """The content of each generated file, by its path in the chart. Raises ValueError."""
    files = {f"templates/{name}.yaml": HEADER + _template(found) for name, found in objects().items()}
    files["templates/_offered.tpl"] = _offered_template()
    files["Chart.yaml"] = _chart_yaml(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"])
    files["README.md"] = _readme((CHART / "values.yaml").read_text())
    files["values.schema.json"] = _schema()
    files["crds/driverrollout.yaml"] = (DEPLOY / "components/rollout/crd.yaml").read_text()
    return files


def _schema() -> str:
    """The schema with the names of the variables of each container."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    for part, words in COMMANDS.items():
        command: click.Command = cli
        for word in words:
            assert isinstance(command, click.Group)
            found = command.get_command(click.Context(command), word)
            assert found is not None, word
            command = found
        names = {name for one in command.params for name in one.envvar or ()}
        rule = {"enum": sorted(names.union(NO_OPTIONS))}
        schema["properties"][part]["properties"]["env"] = {**schema["definitions"]["env"], "propertyNames": rule}
    return json.dumps(schema, indent=2) + "\n"


def _chart_yaml(project: Json) -> str:
    """Chart.yaml, with the metadata of pyproject.toml."""
    urls = project.get("urls", {})
    body = {
        "apiVersion": "v2",
        "name": project["name"],
        "description": project["description"],
        "type": "application",
        "version": project["version"],
        "appVersion": project["version"],
        "kubeVersion": ">=1.22.0-0",
        "home": urls.get("Homepage"),
        "sources": [url for name, url in urls.items() if name in ("Source", "Repository")],
        "maintainers": project.get("maintainers") or project.get("authors"),
        "keywords": project.get("keywords"),
    }
    text = yaml.safe_dump({key: value for key, value in body.items() if value}, sort_keys=False, width=10**6)
    return f"# Made by scripts/chart.\n{text}"


README = """\
# driver-manager

<!-- Made from values.yaml by scripts/chart. -->

{description}

```sh
helm install driver-manager . --namespace NAMESPACE --set vendor=VENDOR
```

Every object has the labels `app.kubernetes.io/instance` (the release), `version` and `managed-by`. On pods and in
selectors, `instance` is the name of the workload: selectors cannot be changed.

| value | default | meaning |
|---|---|---|
{rows}"""


def _readme(values: str) -> str:
    """The table of the values, each with its comment in values.yaml. Raises ValueError if a value has none."""
    described = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["description"]
    rows = "".join(f"| `{name}` | {default} | {meaning} |\n" for name, default, meaning in documented(values))
    return README.format(description=described, rows=rows)


def documented(values: str) -> Iterator[tuple[str, str, str]]:
    """Name, default and meaning of each value that is no group: its comment, or the last one of a value of that name.

    A component's switch is described by the comment of its group. Raises ValueError if a value has no comment.
    """
    groups: list[tuple[int, str, str]] = []
    known: dict[str, str] = {}
    comment: list[str] = []
    for line in values.splitlines():
        if text := re.fullmatch(r" *# (.*)", line):
            comment.append(text[1])
        elif found := re.fullmatch(r"( *)(\w+):(?: (.*))?", line):
            depth, name, default = len(found[1]), found[2], found[3]
            groups = [one for one in groups if one[0] < depth]
            meaning = " ".join(comment)
            if default is None:
                groups.append((depth, name, meaning))
            else:
                known[name] = meaning or (groups[-1][2] if name == "enabled" else known.get(name, ""))
                path = ".".join([*(one[1] for one in groups), name])
                if not known[name]:
                    raise ValueError(f"values.yaml: {path} has no comment")
                yield path, f"`{default}`", known[name]
            comment = []
        else:
            comment = []  # about the file


def _template(found: list[tuple[When, layers.Fields]]) -> str:
    return "".join(_workload(node, when) for when, node in found if _is_workload(node)) + layers.united(
        "".join(_document(node, when) for when, node in found)
    )


def _is_workload(node: layers.Fields) -> bool:
    return node["kind"][0].node in ("DaemonSet", "Deployment")


def _part(node: layers.Fields) -> str:
    """The name of a workload as a part of the chart."""
    name: str = node["metadata"][0].node["name"][0].node
    return f"driver-manager.{name.removeprefix(VENDOR + '-')}"


def _text(node: layers.Fields, when: When) -> str:
    # A component that a vendor's overlays do not name is refused for that vendor, by `driver-manager.has`.
    vendors = frozenset(vendor for vendor, names in offered().items() if when.having <= names.keys())
    return _escaped(layers.united(layers.text(node, When(vendors, when.having))))


def _workload(node: layers.Fields, when: When) -> str:
    """A workload by itself, as what the values say of its pod comes last."""
    return f'{{{{- define "{_part(node)}" -}}}}\n{_text(node, when)}{{{{- end }}}}\n'


def _document(node: layers.Fields, when: When) -> str:
    used = f'{{{{ include "driver-manager.finished" (list . "{_part(node)}") }}}}\n' if _is_workload(node) else ""
    condition, text = when.expression(), f"---\n{used or _text(node, when)}"
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n" if condition else text


def _escaped(text: str) -> str:
    """For Helm: what looks like its language stands for itself, and the words for values ask for them."""
    text = re.sub(r"\{\{(?!- (?:if|else|end))", '{{ "{{" }}', text)
    text = re.sub(rf"^( *){LABELS}: ''", lambda found: LABELLED.format(len(found[1])), text, flags=re.MULTILINE)
    text = re.sub(rf"^  {NOTES}: '?(\w*)'?$", lambda found: _noted(found[1]), text, flags=re.MULTILINE)
    for word in sorted(WORDS, key=len, reverse=True):
        text = text.replace(word, WORDS[word])
    return text


def _noted(part: str) -> str:
    values = ".".join(filter(None, (".Values", part, "serviceAccount.annotations")))
    return f'{{{{- with {values} }}}}{{{{ dict "annotations" . | toYaml | nindent 2 }}}}{{{{ end }}}}'


def _offered_template() -> str:
    offers = offered()
    table = {
        "offered": offers,
        "requires": {name: list(needed) for name, needed in REQUIRES.items()},
        "containers": CONTAINERS,
        "parts": PARTS,
    }
    body = yaml.safe_dump(table, sort_keys=False)
    return f'{HEADER}{{{{- define "driver-manager.table" -}}}}\n{body}{{{{- end }}}}\n'


def drifted(files: Mapping[str, str]) -> list[str]:
    """Those of the files that the chart does not have so, and what it has beside them and those written by hand."""
    wrong = [name for name, text in files.items() if not (CHART / name).is_file() or (CHART / name).read_text() != text]
    marked = (path for path in CHART.rglob("*") if path.is_file() and "Made from deploy/ by" in path.read_text())
    return wrong + [name for path in marked if (name := path.relative_to(CHART).as_posix()) not in files]


def main() -> int:
    """0, or with --check 1 and the files that are out of date."""
    parser = argparse.ArgumentParser(description="Writes the Helm chart in deploy/charts/driver-manager from deploy/.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where the chart is out of date")
    asked = parser.parse_args()
    files = templates()
    wrong = drifted(files)
    for name in wrong:
        if asked.check:
            print(f"chart: {name} is out of date; run scripts/chart", file=sys.stderr)
        elif name in files:
            (CHART / name).parent.mkdir(parents=True, exist_ok=True)
            (CHART / name).write_text(files[name])
        else:
            (CHART / name).unlink()
    return 1 if asked.check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
