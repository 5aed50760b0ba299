"""The plan of facts, as text: rows of the golden files in `tests/unit/golden/plans`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from driver_manager.domain import deadline, host, host_record, journal, node, observation, pci, profile, selectors
from driver_manager.domain.errors import ManagerError
from driver_manager.domain.host import Module
from driver_manager.domain.journal import Journal
from driver_manager.domain.node import PodList
from driver_manager.domain.observation import Loader, Policy, Situation
from driver_manager.domain.swap.node_patches import release, take
from driver_manager.domain.swap.planner import plan, wants_users
from driver_manager.domain.swap.preflight import checks, rights, rights_to_replace
from driver_manager.domain.swap.steps import GiveBack, Step, TakeNode, as_json
from tests.support.fakes import builders
from tests.support.fakes.builders import DRIVER, EXPORTER, PAUSED, PLUGIN, PROFILE

CONTAINER, MANAGER = Policy(), Policy(loader=Loader.MANAGER)
STATE, READY = PROFILE.paths.state_file, PROFILE.paths.ready_marker
TAKEN = {PLUGIN: PAUSED, EXPORTER: PAUSED, DRIVER: "true"}
ASCEND_LOADED = {"modules": {"drv_pcie_host": Module("drv_pcie_host", "23.0", 3)}}
GOLDEN = Path(__file__).parents[2] / "unit" / "golden" / "plans"

NVIDIA = builders.PROFILES["nvidia"]
DOMAIN = (deadline, host, host_record, journal, node, observation, pci, profile, builders)
NAMES = {**globals(), "selectors": selectors} | {
    name: value for module in DOMAIN for name, value in vars(module).items() if not name.startswith("_")
}
"""What the facts of a row may use: the constants above, the builders and the types of the domain."""


SHORT = {
    "<new digest>": builders.NEW_DIGEST,
    "<old digest>": builders.OLD_DIGEST,
    "deploy.": PROFILE.deploy.prefix,
    "paused": PAUSED,
    "<root>": PROFILE.paths.driver_root,
}


class Row(Struct, frozen=True):
    title: str
    facts: tuple[str, ...]
    plan: str


def rows(path: Path) -> Iterator[Row]:
    """The rows of one file: a title after `==`, facts, separated by `or`, then `--` and the plan."""
    for text in path.read_text(encoding="utf-8").split("== ")[1:]:
        head, _, expected = text.partition("\n--\n")
        title, _, facts = head.partition("\n")
        yield Row(title, tuple(facts.split("\nor\n")), expected.rstrip("\n"))


def written(found: list[Row]) -> str:
    return "\n".join(f"== {row.title}\n" + "\nor\n".join(row.facts) + f"\n--\n{row.plan}\n" for row in found)


WIDER = {"profile": PROFILE, "policy": CONTAINER, "waited": frozenset(), "namespace": ""}
"""Facts of a row that are not of the node, with their defaults."""

VIEWS = {"shows": "plan", "pauses": (PLUGIN, EXPORTER), "cordons": True}
"""What a row shows, with the arguments of `acquire`."""


def read_facts(facts: str) -> tuple[Situation, dict[str, Any]]:
    """The situation of facts, one a line: `name = expression`, as the builders take them; and what is shown of it."""
    known = dict(line.split(" = ", 1) for line in facts.splitlines() if line)
    values = {name: eval(text, NAMES) for name, text in known.items()}  # noqa: S307  # a file of this repository
    wider = {name: values.pop(name, default) for name, default in WIDER.items()}
    view = {name: values.pop(name, default) for name, default in VIEWS.items()}
    obs = builders.observation(**values)
    obs = replace(obs, pods=PodList(obs.pods.pods, obs.pods.resource_version, wider["namespace"]))
    return Situation.of(obs, wider["profile"], wider["policy"], wider["waited"]), view


def shown(facts: str) -> str:
    """The plan for `facts` with the data of its steps and the rights that it needs, or why it is refused.

    With `shows = "checks"` the checks of preflight instead, with "acquire" and "release" the patches of the Node.
    """
    situation, view = read_facts(facts)
    obs, profile = situation.obs, situation.profile
    match view["shows"]:
        case "checks":
            text = _checks(situation)
        case "acquire":
            taken = take(situation, frozenset(view["pauses"]), cordon=view["cordons"])
            text = "\n".join(line for step in taken for line in (step.describe(), *details(step, None)))
            text = text or "nothing to do"
        case "release":
            assert obs.journal is not None
            text = plain(as_json(release(obs.node, obs.journal, profile))) or "nothing to do"
        case _:
            text = _shown(situation)
    for name, value in SHORT.items():
        text = text.replace(value, name)
    return text


def _checks(situation: Situation) -> str:
    marks = {True: "ok", False: "PROBLEM", None: "unknown"}
    lines = [f"{marks[check.ok]} {check.name}: {check.what}  {check.remedy}".rstrip() for check in checks(situation)]
    needed = sorted(" ".join(right) for right in rights_to_replace(situation.profile, situation.policy))
    return "\n".join([*lines, f"rights: {', '.join(needed)}"])


def _shown(situation: Situation) -> str:
    try:
        found = plan(situation)
    except ManagerError as error:
        blockers = [f"blockers: {', '.join(error.blockers)}"] if error.blockers else []
        lines = [f"refused with {int(error.exit_code)}: {error.what}", f"remedy: {error.remedy}", *blockers]
        return "\n".join(lines)
    taken = next((step.journal for step in found.steps if isinstance(step, TakeNode)), None)
    lines = []
    for line in found.to_text().splitlines():
        number, _, _ = line.strip().partition(".")
        lines.append(line)
        if line.startswith("  ") and number.isdecimal():
            lines += [f"       {text}" for text in details(found.steps[int(number) - 1], taken)]
    needed = [" ".join(right) for right in rights(found.steps)]
    lines += [f"  rights: {', '.join(needed)}"] if needed else []
    lines += ["  reads claims and holders first"] if wants_users(situation) else []
    return "\n".join(lines)


def details(step: Step, taken: Journal | None) -> Iterator[str]:
    """The data of a step that its line does not show; the journal of a release only where it differs."""
    text = step.describe()
    for name, value in asdict(step).items():
        if isinstance(value, Journal):
            if isinstance(step, GiveBack) and value == taken:
                continue
            hidden = ("owner", "window", "bootId") if value.boot_id == "boot-1" else ("owner", "window")
            fields_of = {key: item for key, item in as_json(value).items() if key not in hidden}
            yield f"{name}: {plain(fields_of)}"
        elif name == "change":
            change = as_json(value)
            notes = dict(change["annotations"])
            notes |= {key: "written" for key, item in notes.items() if key.endswith(".journal") and item is not None}
            if changed := plain({**change, "annotations": notes}):
                yield f"{name}: {changed}"
        elif (data := plain(as_json(value))) and data not in text and not _is_shown(value, text):
            yield f"{name}: {data}"


def _is_shown(value: Any, text: str) -> bool:
    if isinstance(value, float):
        return f"{value:g} s" in text
    return isinstance(value, tuple) and all(isinstance(part, str) and part in text for part in value)


def plain(value: Any) -> str:
    """`value` in one line, without what is empty; False where it is not the default, and None for a removed key."""
    if isinstance(value, Mapping):
        parts = [f"{key}={text}" for key, item in value.items() if (text := plain(item) or _emptied(key, item))]
        return f"{{{', '.join(parts)}}}" if parts else ""
    if isinstance(value, list):
        return f"[{', '.join(map(plain, value))}]" if value else ""
    return "" if value in (None, False, "") else str(value)


def _emptied(key: str, item: Any) -> str:
    if "/" in key:
        return "removed" if item is None else "''"
    return "no" if key == "unschedulable" and item is False else ""


if __name__ == "__main__":  # write the plans of all rows again
    for file in sorted(GOLDEN.glob("*.txt")):
        file.write_text(written([replace(row, plan=shown(row.facts[0])) for row in rows(file)]), encoding="utf-8")
