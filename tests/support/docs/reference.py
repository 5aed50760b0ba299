"""What `scripts/reference` writes: docs/reference.md, tables of other pages, and manifests made from the code."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
from msgspec import Struct
from msgspec.structs import asdict

from driver_manager import schemas
from driver_manager.adapters.kube.leases import LEASE
from driver_manager.cli.main import LazyGroup, cli
from driver_manager.cli.options import SettingOption
from driver_manager.domain import settings
from driver_manager.domain.errors import EXIT_MEANINGS
from driver_manager.domain.events import EVENTS, ROLLOUT_EVENTS
from driver_manager.domain.fleet import status as fleet_metrics
from driver_manager.domain.fleet.state import Phase
from driver_manager.domain.fleet.status import FleetReport, RolloutFigures, operator_families
from driver_manager.domain.health.metrics import HealthReport, families
from driver_manager.domain.health.watch import History
from driver_manager.domain.host import DeviceVerdict, Health, ProbeResult
from driver_manager.domain.metrics import PREFIX, Family
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.outage import Outage, OutagePart
from driver_manager.domain.reboot import state as reboot_metrics
from driver_manager.domain.reboot.state import Record
from driver_manager.domain.run_report import RunFigures, RunReport, run_families
from driver_manager.domain.settings import AnySetting, SettingKind
from driver_manager.profiles import builtin
from tests.assurance.bench.figure import Target
from tests.assurance.fuzz.targets import TARGETS
from tests.assurance.mutants.catalogue import MUTANTS
from tests.support.control_plane.fault_kinds import KINDS
from tests.support.control_plane.fault_matrix import ROUTES
from tests.support.control_plane.foreign_edits import HANDS, WAITS
from tests.support.control_plane.sweep.scene import PATHS
from tests.support.docs import profile_keys, rollout_object
from tests.support.docs.markdown import DOCS, ROOT, code, codes, main, table, with_block
from tests.support.fakes.night import NIGHTS
from tests.support.node import measured

STATE_MEANINGS: dict[NodeState, str] = {
    NodeState.READY: "the last run succeeded, or stood down for the host's own driver; the node is not taken",
    NodeState.UPGRADING: "a run has taken the node, and has not ended",
    NodeState.HELD: "a run failed after the old driver was gone: operands stay paused until a later run succeeds",
    NodeState.FAILED: "the last run failed; the node was released",
    NodeState.WEDGED: "health-watch found that the driver no longer serves its devices",
    NodeState.REBOOT_REQUIRED: "only a reboot brings the wanted driver, or brings the devices back",
}

PART_MEANINGS: dict[OutagePart, str] = {
    OutagePart.EVICT: "users' pods leave: evictions, drains, what an operator was asked to move",
    OutagePart.OPERANDS: "the operands' labels are paused and their pods leave",
    OutagePart.DEVICE: "host services stop and the last processes release the device",
    OutagePart.UNLOAD: "the old modules are unloaded; where a rollout clears the node first, the old driver container "
    "ends",
    OutagePart.INSTALL: "stale mounts and files are removed, the root is flipped to a staged driver; where a container "
    "loads, everything until its driver is recorded",
    OutagePart.LOAD: "the new modules are loaded, and recorded",
    OutagePart.PROBE: "the run waits for device nodes and probes the driver; where its container loads, until it is "
    "ready",
    OutagePart.BACK: "services start, and labels and cordon are restored",
    OutagePart.OTHER: "everything in between: between two runs, reading the facts and planning again",
}

SCRIPT = "scripts/reference"
NODE_BLOCK = f"{SCRIPT} from tests/support/node/measured.json"
HEAD = f"""# Reference

Made from the code by `{SCRIPT}`; a test fails when it differs from the code. What things mean in
practice: [operate.md](operate.md). How to write a profile: [profiles.md](profiles.md).
"""
OPTIONS = """## Options

Flag before environment before default; an empty variable counts as unset. Durations: `90`, `30s`, `5m`, `1h30m`.
`--help` shows what people type, `--help-all` everything. A flag without a value switches on; its variable takes
`true` or `1`. A setting without a flag is only a variable. `status`, `plan`, `holders` and `restore` read every setting
that they list here, and have a flag for those that `--help-all` shows.
"""
EXITS = """
Every failure prints one line what and one line what to do; the same goes to the termination log, and to an Event on the
Node once it was read and is known to be this host's. With `-o json` a command that fails prints `error`, `remedy` and
`exitCode` as JSON.
`plan` exits with 0 if a run would continue or has nothing to do, else with the code with which the run would end.
A disruption budget that allows no eviction now is a note, as a run retries the eviction. `health-watch`, `rebooter` and
`rollout controller` end with 0 when asked to terminate; `health-watch --once`: 5 unhealthy, 6 unknown. `rollout status`
and `rollout plan` end with 12 where the rollout is halted or stalled, and with 0 otherwise.
"""
KEYS = """## Labels and annotations

On the Node, by profile. Nothing else on it is ever changed but `spec.unschedulable`, and no label key is created but
that of the driver's state, those of a reboot, that of an upgrade's state by a rollout, `…driver=pre-installed` on
a host with its own driver, and during a pause those of `deploy.on_unless_false`.
"""
STATES = """### The driver's state

The label has one of these words, the annotation beside it how the last run ended: JSON with `v` (1), `state`,
`exitCode`, `what`, `remedy`, `step`, `digest`, `version`, `ended` and `since`. A second label, `….version`, has the
version of the loaded driver as the last of these patches knew it, with `_` for what a label cannot contain.
All are written in the patches that a run sends anyway; only a run that sends none, or holds the node, writes them in
one of their own, where that changes something. Where the account may, the condition `DriverReady` of the same domain
follows the state: `True` for `ready`, otherwise `False` with the state as reason. `NODE_STATE=off` leaves all of them
out; what is there already then stays.
"""
FORMS = """## JSON

What commands print with `-o json`. Each form is a JSON Schema (draft-07) in the folder `driver_manager/schemas` of the
package, with a description of each field; a test checks every output against it. `schemaVersion` changes where a field
is removed or changes its meaning; a new field does not change it.
"""
APART = ("sandbox", "completion", "profile ")
"""Commands that no group of options is about."""

DEFAULT = " Default: "
"""Where the text of a setting tells a default that is no constant."""

DERIVED = {
    "ready_withdrawn": "the ready marker, put aside by health-watch",
    "work_lock": "held locked by a reconcile while it works on the driver",
    "effect_lock": "held locked by a run during each change to the driver",
    "owner_note": "names the run that may change the driver",
    "reboot_wish": "remembers over a reboot which driver it was asked for",
    "rebooter_lock": "held locked by the one rebooter that works on this host",
    "recovery_lock": "held locked during a turn of the recovery of the driver",
    "failure_note": "note of a run that failed after it had disturbed pods; the next one waits because of it",
    "health_record": "record of health-watch for this boot",
    "run_figures": "durations of the runs of this boot, for metrics",
    "baseline": "what devices, services and modules were like before the last swap of this boot",
    "bindings": "what the devices were bound to before a run of this boot gave them to virtual machines",
    "client_record": "the driver generation, and what was done about its clients in this boot",
    "reload_request": "asks the next run of this boot to reload the driver, though its digest is equal",
    "client_lock": "locked by the process that restarts clients of the driver",
    "mute_file": "mutes health-watch on this host until the time in it",
}
"""Paths that follow from others, with their meanings."""

METRICS = """## Metrics

Prefix `{prefix}`. `METRICS_TEXTFILE` of health-watch, of a run and of the rebooter writes its own; `METRICS_ADDR` of
health-watch serves all three. Those of `rollout controller` are served by its `ROLLOUT_STATUS_ADDR`. Names that begin
with `gpu_operator_` or `rbln_operator_` have no such prefix: they are what the vendor's operator calls the same, and
only the controller that leads serves them.

"""
METRICS_COMPONENT = DOCS.parent / "deploy/components/metrics"
ALERTS_HEAD = f"""\
# Made from rules.yaml by {SCRIPT}; a test fails when it differs.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: driver
  labels:
    app.kubernetes.io/name: driver
    app.kubernetes.io/part-of: driver-manager
spec:
"""
ONE_RUN = RunReport(0, 0.0, 0.0, {"unload modules": 0.0}, window=Outage(0.0, 0.0, {OutagePart.UNLOAD: 0.0}))
ONE_REPORT = FleetReport(leads=True, rollouts={"": RolloutFigures(Phase.COMPLETE, {}, 0.0)})
DEVICE_METRIC = ProbeResult(Health.HEALTHY, "", devices=(DeviceVerdict("0", Health.HEALTHY, ""),))


assert isinstance(cli, LazyGroup)
GROUP: LazyGroup = cli


def commands() -> dict[str, click.Command]:
    """All commands but the hidden ones."""
    return {name: command for name, command in GROUP.each() if not command.hidden}


class Counts(Struct):
    """Long options of each command with --help, all different ones of all commands, and words of each page."""

    options: dict[str, int]
    distinct: int
    words: dict[str, int]


def counts() -> Counts:
    options = {
        name: {
            word
            for one in command.get_params(click.Context(command))
            if isinstance(one, click.Option) and not one.hidden
            for word in one.opts
            if word.startswith("--")
        }
        for name, command in GROUP.each()
    }
    paths = (*sorted(DOCS.glob("*.md")), ROOT / "README.md")
    words = {path.name: len(path.read_text(encoding="utf-8").split()) for path in paths}
    return Counts({name: len(options[name]) for name in commands()}, len(set().union(*options.values())), words)


def takers(setting: AnySetting) -> list[str]:
    taken = {name: [getattr(one, "setting", None) for one in command.params] for name, command in commands().items()}
    return [name for name, found in taken.items() if setting in found]


def _own_options() -> str:
    """Options that are no settings: they have no variable."""
    own: dict[tuple[str, str], list[str]] = {}
    for name, command in commands().items():
        for option in command.params:
            if isinstance(option, click.Option) and not isinstance(option, SettingOption) and not option.hidden:
                own.setdefault((codes(option.opts), option.help or ""), []).append(name)
    rows = [(flags, codes(names), text) for (flags, text), names in own.items()]
    return "### Of single commands, without a variable\n\n" + table(("flag", "commands", "what"), rows)


def _options() -> Iterator[str]:
    yield OPTIONS
    for heading, group in settings.HEADINGS:
        readers = [tuple(takers(one)) for one in group]
        usual = max(readers, key=readers.count)
        rows = []
        for one, names in zip(group, readers, strict=True):
            flag = "" if one.env in settings.ONLY_VARIABLES else code(one.flag)
            taken = " or ".join(map(code, one.choices)) if one.kind is SettingKind.CHOICE else one.kind.value
            # A default has a column of its own; one that is no constant is at the end of the text.
            text, _, last = (one.help, "", "") if one.default is not None else one.help.partition(DEFAULT)
            default = code(str(one.default)) if one.default is not None else last.rstrip(".") or "none"
            text += "" if names == usual else f" ({_of(list(names))})"
            rows.append(
                (codes((one.env, *one.also)), flag, taken, "off" if one.kind is SettingKind.FLAG else default, text)
            )
        head = f"### {heading}\n\nRead by {_of(list(usual))}, unless the row names others.\n\n"
        yield head + table(("environment", "flag", "takes", "default", "what"), rows)
    yield _own_options()


def _of(names: list[str]) -> str:
    """Names of commands, or "all but" the others if those are fewer."""
    others = [name for name in commands() if name not in names and not name.startswith(APART)]
    if not others:
        return "all"
    return codes(names) if len(names) <= len(others) else f"all but {codes(others)}"


def _node_keys() -> Iterator[str]:
    yield KEYS
    for name, profile in builtin().items():
        keys, deploy = asdict(profile.keys), profile.deploy
        rows = [(code(key), profile_keys.MEANINGS[f"keys.{field}"]) for field, key in keys.items() if key]
        if deploy.prefix:
            what = f"label: `true` places an operand; `{deploy.paused_value}` pauses it"
            rows += [(code(f"{deploy.prefix}*"), what)]
            rows += [(code(deploy.driver_key), "label: places the driver itself; never paused")]
        rows += [(code(label), "label: marks a node of this vendor") for label in profile.present_labels]
        yield f"### {name}\n\n" + table(("key", "what"), rows)
    yield f"Slots for reboots are in the Lease `{LEASE}` of the operator's namespace."
    rows = [(code(state.value), STATE_MEANINGS[state]) for state in NodeState]
    yield f"{STATES.strip()}\n\n{table(('state', 'meaning'), rows)}"


def _events() -> Iterator[str]:
    yield "## Events"
    places = {"Node, in the namespace `default`": EVENTS, "DriverRollout, in its namespace": ROLLOUT_EVENTS}
    for where, found in places.items():
        rows = [(code(reason), text) for reason, text in found.items()]
        yield f"On the {where}.\n\n{table(('reason', 'what it means'), rows)}"


def every_family() -> dict[str, tuple[Family, ...]]:
    """All metrics by the program that they are about."""
    found = {
        "health-watch": families(HealthReport(History(), DEVICE_METRIC)),
        "the runs of `reconcile-driver-state`": run_families(RunFigures().with_run(ONE_RUN)),
        "the rebooter": reboot_metrics.reboot_families(Record()),
        "`rollout controller`": fleet_metrics.fleet_families(ONE_REPORT),
    }
    for name, profile in builtin().items():
        found[f"`rollout controller`, profile {name}"] = operator_families(ONE_REPORT, profile.upgrade_metrics)
    return found


def _metrics() -> str:
    rows = [
        (code(one.name.removeprefix(PREFIX)), program, one.kind, codes(next(iter(one.values), ((),))[0]), one.help)
        for program, found in every_family().items()
        for one in found
    ]
    return METRICS.format(prefix=PREFIX) + table(("metric", "about", "kind", "labels", "what"), rows)


def _files() -> str:
    found: dict[str, list[str]] = {}
    for profile in builtin().values():
        for field, value in asdict(profile.paths).items():
            if isinstance(value, str):
                found.setdefault(profile_keys.MEANINGS[f"paths.{field}"], []).append(value)
        for field, text in DERIVED.items():
            found.setdefault(text, []).append(getattr(profile.paths, field))
    rows = ((codes(dict.fromkeys(filter(None, paths))), meaning) for meaning, paths in found.items())
    shown = table(("path", "what"), (row for row in rows if row[0]))
    return f"## Files on the host\n\nThose of all profiles.\n\n{shown}"


def _nights() -> str:
    rows = (
        (code(one.headline), code(one.state), code(one.event[0]), f"[{one.alert}](#alert-{one.alert.lower()})")
        for one in NIGHTS
    )
    return table(("`status` begins with", "label", "Event", "alert, and what to do"), rows)


def _report() -> str:
    """How many cases the tests of the promises have, and the targets of the benchmark."""
    counts = {
        "paths of the kill sweep": len(PATHS),
        f"kinds of faults, for each request of {len(ROUTES)} routes": len(KINDS),
        "pairs of a change by others and a wait": sum(hand.fits(wait) for hand in HANDS for wait in WAITS),
        "fuzzed readers of input": len(TARGETS),
        "mutants": len(MUTANTS),
    }
    sizes = table(("what", "number"), [(what, str(count)) for what, count in counts.items()])
    return f"{sizes}\n\n{table(('benchmark', 'target'), [(one.what, str(one)) for one in Target])}"


def _alerts() -> str:
    """The alerts as an object of the Prometheus operator: the plain rules file, and a head."""
    rules = (METRICS_COMPONENT / "rules.yaml").read_text(encoding="utf-8").splitlines()
    groups = rules[rules.index("groups:") :]
    return ALERTS_HEAD + "".join(f"  {line}\n" if line else "\n" for line in groups)


def pages() -> Mapping[Path, str]:
    what = [(code(name), command.get_short_help_str(200)) for name, command in commands().items()]
    exits = table(("code", "what"), [(str(status.value), text) for status, text in EXIT_MEANINGS.items()])
    forms = [(code(f"{name}.schema.json"), schemas.schema(name)["title"]) for name in schemas.NAMES]
    parts = ["## Commands\n\n" + table(("command", "what"), what), *_options(), f"## Exit codes\n\n{exits}\n{EXITS}"]
    parts = [HEAD, *parts, *_node_keys(), *_events(), _metrics(), _files()]
    parts += [f"{FORMS}\n{table(('schema', 'printed by'), forms)}", *rollout_object.reference()]
    window = table(("part", "what its time goes to"), [(code(part.value), PART_MEANINGS[part]) for part in OutagePart])
    written = {
        DOCS / "reference.md": "\n\n".join(part.strip() for part in parts) + "\n",
        METRICS_COMPONENT / "prometheusrule.yaml": _alerts(),
        profile_keys.SCHEMA: profile_keys.schema_text(),
        DOCS.parent / "deploy/components/rollout/crd.yaml": rollout_object.manifest(SCRIPT),
    }
    for page, script, block in (
        (ROOT / "README.md", NODE_BLOCK, measured.upgrades_as_markdown(measured.recorded())),
        (DOCS / "profiles.md", SCRIPT, profile_keys.rows()),
        (DOCS / "operate.md", SCRIPT, _nights()),
        (DOCS / "window.md", SCRIPT, window),
        (DOCS / "test-report.md", SCRIPT, _report()),
        (DOCS / "test-report.md", NODE_BLOCK, measured.as_markdown(measured.recorded())),
    ):
        written[page] = with_block(written.get(page) or page.read_text(encoding="utf-8"), script, block)
    return written


if __name__ == "__main__":
    if sys.argv[1:] == ["--count"]:
        found = counts()
        print(f"{len(found.options)} commands, {found.distinct} different long options")
        print("".join(f"{number:6} options  {name}\n" for name, number in found.options.items()), end="")
        print("".join(f"{number:6} words    {name}\n" for name, number in found.words.items()), end="")
        print(f"{sum(found.words.values()):6} words    in all")
        sys.exit()
    sys.exit(main(SCRIPT, pages))
