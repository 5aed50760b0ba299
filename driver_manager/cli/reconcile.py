"""`reconcile-driver-state`, `reconcile-vfio-state`, `plan` and `preflight`."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import asdict, replace

from driver_manager import schemas
from driver_manager.adapters.host.holders import whose
from driver_manager.adapters.host.modules import HOST, ModuleTrees, OtherKernel
from driver_manager.adapters.host.notes import HostClientNotes, RunFiguresFile
from driver_manager.adapters.host.system import Sources, enforces_signatures
from driver_manager.adapters.report.log import LogReporter, write_termination_log
from driver_manager.adapters.report.publish import Textfile
from driver_manager.cli.main import refuse_mistyped, warn_of_mistyped, warn_of_unheeded
from driver_manager.cli.options import (
    ScreenCommand,
    command,
    document,
    in_form,
    output_option,
    put,
    put_after,
    styled,
    with_options,
)
from driver_manager.cli.session import (
    Observer,
    Session,
    host_roots,
    log_form,
    named_profile,
    open_session,
    policy,
    profile_of_host,
    shared_policy,
)
from driver_manager.core.clients import NOT_LOADED, ClientRestarter
from driver_manager.core.ports import Ports
from driver_manager.core.swap.run import Forecast, Outcome, forecast, reconcile
from driver_manager.domain import events, node_state, settings
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ConfigError, ExitCode, ManagerError, PreflightFailed, at_place
from driver_manager.domain.host import Host
from driver_manager.domain.node import Pod
from driver_manager.domain.observation import Loader, Mode, Observation, Policy
from driver_manager.domain.outage import NodeEnd, Outage, expected
from driver_manager.domain.pods.workloads import ClientRules
from driver_manager.domain.profile import Profile
from driver_manager.domain.run_report import RunReport, run_families
from driver_manager.domain.settings import AnySetting, Values
from driver_manager.domain.swap.preflight import Check, firmware_checks, remedies, source_checks
from driver_manager.domain.swap.steps import Plan
from driver_manager.domain.text import one_line, sentences, several

CLIENTS_S = 60.0
"""Seconds that a run takes at most to restart clients: health-watch continues with the others."""


def restart_clients(session: Session, wanted: Policy, pods: Collection[Pod]) -> None:
    """Restart the clients of a driver that this run, or one before, has loaded. Never raises a ManagerError.

    `pods` are those that the run saw on the node. health-watch or the next run finds clients that came meanwhile. If
    the container loads the driver, it is not ready yet: health-watch restarts the clients when it is.
    """
    if wanted.loader is not Loader.MANAGER:
        return
    clock, log, withdrawn = session.clock, session.log, session.profile.paths.ready_withdrawn
    if withdrawn and session.roots.files().exists(withdrawn):
        return  # the driver is wedged: health-watch restarts the clients when it serves again
    notes = HostClientNotes(session.roots, session.profile, clock)
    rules = ClientRules.of(session.profile, wanted.eviction.clients, whose(Path("/proc/self"))[0])
    try:
        turn = ClientRestarter(session.cluster, notes, clock, log, rules).after_run(
            pods, Deadline.after(CLIENTS_S, clock.monotonic)
        )
    except ManagerError as error:
        log.warn(f"clients of the driver are not restarted: {error.what}. {error.remedy}")
        return
    if not turn.is_over and turn.problem != NOT_LOADED:
        log.warn(f"not every client of the driver was restarted: {turn.undone}; health-watch or the next run continues")


# The figures of a run, which stay on the host. A run that could not reach its Node counts too, if its options name the
# profile.


class Measured(Struct):
    """One run: `profile` once it is known, `ports` once it has begun, and the exit code."""

    exit_code: int = ExitCode.INTERNAL
    profile: Profile | None = None
    ports: Ports | None = None


@contextmanager
def measured(values: Values) -> Generator[Measured, None, None]:
    """Measure the run within it. The caller sets `exit_code`, unless the run raises a ManagerError."""
    run, begun_s = Measured(), time.monotonic()
    try:
        yield run
    except ManagerError as error:
        run.exit_code = error.exit_code
        raise
    finally:
        _keep(run, time.monotonic() - begun_s, values)


def _keep(run: Measured, took_s: float, values: Values) -> None:
    """Add the run to the figures on the host. Ignores errors: the run is then missing in the metrics."""
    with suppress(ManagerError):
        profile = run.profile or named_profile(values)[0]
        if profile is None:
            return
        is_given_back = run.ports is not None and run.ports.log.end is NodeEnd.RELEASED
        file = RunFiguresFile(host_roots(values).files(), profile.paths)
        figures = file.add(_report(run, took_s), is_given_back=is_given_back)
        path = values[settings.METRICS_TEXTFILE]
        if path:
            log: LogReporter = log_form(values).reporter(time.time)
            Textfile(Path(path), log).publish(run_families(figures))


def _report(run: Measured, took_s: float) -> RunReport:
    if run.ports is None:
        return RunReport(run.exit_code, time.time(), took_s)
    log, (requests, retries) = run.ports.log, run.ports.cluster.traffic()
    steps, is_held = log.seconds(run.ports.clock.monotonic()), log.end is NodeEnd.HELD
    return RunReport(run.exit_code, time.time(), took_s, steps, is_held, requests, retries, run.ports.outage())


# The policy of `reconcile-vfio-state` and of `--mode vfio`: the environment of the init containers of vfio-manager
# pods, without a digest and without a loader.

MANAGER = "manager"

mode_option = click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    default=Mode.CONTAINER.value,
    show_default=True,
    help="Containers or virtual machines (vfio).",
)


def policy_for(values: Values, mode: Mode) -> Policy:
    """The policy in the options for `mode`. Raises ConfigError for an invalid selector."""
    if mode is Mode.CONTAINER:
        return policy(values)
    return replace(
        shared_policy(values),
        mode=Mode.VFIO,
        binds=values[settings.VFIO_BIND] == MANAGER,
        # The label of the driver pod is paused with the others, or gone already.
        driver_pod_leaves=True,
    )


RUN_OPTIONS = (settings.CLUSTER, settings.DRIVER, settings.WORKLOADS, settings.HOST, settings.LOGGING)


@command(
    "reconcile-driver-state", "Bring the driver to the wanted state; the init container runs this.", is_of_pods=True
)
@click.option("--dry-run", is_flag=True, help="Print the plan and change nothing (same as `plan`).")
@output_option
@with_options(*RUN_OPTIONS, (settings.METRICS_TEXTFILE,))
def reconcile_command(*, dry_run: bool, output: str, values: Values) -> int:
    """Bring this node's driver to the wanted state, and release the node.

    Pauses the operands' deploy labels, waits until their pods have left, unloads the old driver, loads the new one
    (or leaves that to its container), and restores every label. If it is killed, the next run continues. After a
    failure the next run waits (see --retry-wait).
    """
    return (_show_plan if dry_run else _run)(values, Mode.CONTAINER, output)


@command("reconcile-vfio-state", "Give the devices to virtual machines; vfio-manager pods run this.", is_of_pods=True)
@click.option("--dry-run", is_flag=True, help="Print the plan and change nothing (same as `plan --mode vfio`).")
@output_option
@with_options(settings.CLUSTER, settings.VFIO, settings.HOST, settings.LOGGING, (settings.METRICS_TEXTFILE,))
def reconcile_vfio_command(*, dry_run: bool, output: str, values: Values) -> int:
    """Give this node's devices to virtual machines: unload their driver and bind them to vfio.

    If all devices are already on vfio, nothing is changed. A device that a virtual machine has is never touched. To
    undo, run reconcile-driver-state. If it is killed at any point, the next run continues.
    """
    return (_show_plan if dry_run else _run)(values, Mode.VFIO, output)


def _run(values: Values, mode: Mode, output: str) -> int:
    """One reconcile, from its options to its exit code. Invalid options count as a failed run."""
    with measured(values) as run:
        wanted = policy_for(values, mode)
        session = open_session(values, lists_steps=True, mode=mode)
        warn_of_unheeded(session.profile, session.log)
        run.profile, run.ports = session.profile, session.ports()
        observe = Observer(session)
        here, outcome = session.node if session.is_here else None, None
        try:
            outcome = reconcile(run.ports, observe, session.profile, wanted, here)
        finally:
            session.log.ended(well=outcome is not None and outcome.exit_code is ExitCode.DONE)
        outcome = replace(outcome, remedy=at_place(outcome.remedy, log_form(values).place))
        run.exit_code = outcome.exit_code
        if outcome.exit_code is ExitCode.DONE and mode is Mode.CONTAINER:
            restart_clients(session, wanted, observe.pods)
        _announce(session, outcome)
    if output != "text":
        words = {"error": outcome.what, "remedy": outcome.remedy} if outcome.exit_code else {"what": outcome.what}
        body = {"schemaVersion": schemas.VERSION, **words, "exitCode": int(outcome.exit_code)}
        put_after(document(output, body), session.log)
    return int(outcome.exit_code)


# `plan`, and `preflight`, its other name for operators and for the pods of a rollout

_MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("?", "yellow")}
_TYPED = (settings.DRIVER_LOAD, settings.DRIVER_ROOT, settings.DRIVER_CONFIG_DIGEST, settings.FORCE_REINSTALL)


def _asked(name: str, typed: Iterable[AnySetting] | None = None) -> ScreenCommand:
    """The command `name`, with an option for each of `typed`; hidden, with all options of a run, without `typed`."""
    kernel = click.option("--kernel", metavar="RELEASE", default="", help="Check the driver for another kernel.")
    ask = with_options(*RUN_OPTIONS, (settings.VFIO_BIND,), typed=typed)(_ask)
    is_other = typed is None  # the name for pods of operators and of rollouts
    made = command(name, "Print what a reconcile would do now, and why.", hidden=is_other, is_of_pods=is_other)
    return made(mode_option(kernel(output_option(ask))))


def _ask(*, mode: str, kernel: str, output: str, values: Values) -> int:
    """Print what reconcile-driver-state, or reconcile-vfio-state, would do now, and why. Changes nothing.

    The exit code is 0 if the run would continue or has nothing to do, else the one with which it would end. With
    --kernel: whether the driver fits a kernel that does not run; 6 if not, or if that is unknown.
    """
    return _of_other_kernel(kernel, Mode(mode), values, output) if kernel else _show_plan(values, Mode(mode), output)


plan_command = _asked("plan", (*settings.TYPED_BY_HAND, *_TYPED, settings.ENABLE_NPU_POD_EVICTION))
preflight_command = _asked("preflight")


def _show_plan(values: Values, mode: Mode, output: str) -> int:
    wanted = policy_for(values, mode)
    is_of_rollout = click.get_current_context().command is preflight_command
    if not is_of_rollout:
        refuse_mistyped()
    session = open_session(values, api_timeout_s=settings.BY_HAND_API_TIMEOUT_S, mode=mode)
    if is_of_rollout:  # it fails for no more than the run, which only warns
        warn_of_mistyped(session.log)
    obs = session.observe(session.node)
    session.warn_of_refused(obs)
    found = forecast(session.ports(), obs, session.profile, wanted)
    window = _expected_window(session, found.plan) if found.plan is not None else None
    return _shown(found, window, output)


def _shown(found: Forecast, window: Outage | None, output: str, reason: str = "") -> int:
    """Print the forecast; exit code 0. Raises its error, with which the JSON form is printed."""
    body, error = _body(found, window, reason), found.error
    if error is None or output == "text":
        put(in_form(output, {"schemaVersion": schemas.VERSION, **body}, lambda _: _text(found, window)))
    if error is not None:
        raise error
    return ExitCode.DONE


def _body(found: Forecast, window: Outage | None, reason: str) -> dict[str, Any]:
    """The JSON form of the forecast, which its error gets too."""
    planned, error = found.plan, found.error
    body: dict[str, Any] = {"decision": None, "reason": reason, "steps": [], "workloads": [], "warnings": []}
    body |= planned.to_json() if planned is not None else {}
    body |= {"window": window.to_json() if window else None, "checks": [asdict(check) for check in found.checks]}
    if error is not None:
        error.facts = {**body, **error.facts}
    return body


def plan_text(session: Session, obs: Observation, wanted: Policy) -> str:
    """What `plan` prints for these facts, with the error of the run at its end."""
    found = forecast(session.ports(), obs, session.profile, wanted)
    window = _expected_window(session, found.plan) if found.plan is not None else None
    _body(found, window, "")
    error = found.error
    ends = [f"exit {error.exit_code.value}: {sentences(error.what, error.remedy)}"] if error is not None else []
    return "\n".join([_text(found, window), *map(one_line, ends)])


def _text(found: Forecast, window: Outage | None) -> str:
    lines, refused_texts = [], {f"{check.what}. {check.remedy}" for check in found.checks}
    if found.plan is not None:
        notes = tuple(warning for warning in found.plan.warnings if warning not in refused_texts)
        lines.append(replace(found.plan, warnings=notes).to_text())
    elif found.error is not None:
        uses = found.error.facts["workloads"]
        lines += [one_line("pod {pod} {uses}: {fate}, {why}".format(**one)) for one in uses]
    if window is not None:
        least = "at least" if window.is_open else "about"
        lines.append(f"window:   {least} {window.in_words()} (the last one on this node)")
    for check in found.checks:
        mark, colour = _MARKS[check.ok]
        lines.append(f"{styled(mark, fg=colour)} {check.name}: {one_line(check.what)}")
        if check.ok is None and check.remedy:
            lines.append(f"    what to do: {one_line(check.remedy)}")
    return "\n".join(lines)


# `plan --kernel RELEASE`

_INSTALL = "Install that kernel and its headers on the host (without a reboot), then run again."


def kernel_checks(release: str, values: Values) -> tuple[tuple[Check, ...], tuple[Check, ...]]:
    """The checks that decide whether the kernel `release` would load the driver, and those that are only notes.

    The running kernel shows whether signatures are enforced. Raises ConfigError if `release` is not a kernel release.
    """
    if "/" in release or release.strip(".") == "" or release != release.strip():
        raise ConfigError(f"--kernel is {release!r}, which is not a kernel release", "Write it as uname -r prints it.")
    roots, other = host_roots(values), OtherKernel(host_roots(values).files(), release)
    profile = profile_of_host(values, roots)
    trees = ModuleTrees(roots, release, profile.modules, profile.paths.firmware, other=other)
    source = Sources(trees, profile, None).wanted(values[settings.DRIVER_ROOT])
    host = Host(boot_id="", kernel_release=release, enforces_signatures=enforces_signatures(roots.sys))
    has_tree = any(roots.files().exists(f"{HOST}lib/modules/{release}/modules.{name}") for name in ("dep", "builtin"))
    tree = Check("kernel on the host", True, f"the host has modules of kernel {release}")
    if not has_tree:
        what = f"the host has no modules of kernel {release}: its options and checksums are unknown"
        tree = Check("kernel on the host", None, what, _INSTALL)
    found = (
        check if check.ok is not None else Check(check.name, None, check.what, check.remedy or _INSTALL)
        for check in source_checks(source, host)
    )
    return (tree, *found), firmware_checks(source)


def _of_other_kernel(release: str, mode: Mode, values: Values, output: str) -> int:
    """The checks for a kernel that does not run. An unknown one fails, except for firmware."""
    if mode is not Mode.CONTAINER:
        raise ConfigError("--kernel is for the driver of containers", "Leave out --mode vfio.")
    decisive, notes = kernel_checks(release, values)
    failed, error = [check for check in decisive if not check.ok], None
    if failed:
        what = several((f"{check.name}: {check.what}" for check in failed), "; ")
        error = PreflightFailed(what, remedies(failed))
    return _shown(Forecast(None, (*decisive, *notes), error), None, output, f"for kernel {release}")


def _expected_window(session: Session, decided: Plan) -> Outage | None:
    """The window to expect, from the last one of this node; None if the plan opens none."""
    if not any(step.disturbs for step in decided.steps):
        return None
    outcome = node_state.outcome_on(session.node, session.profile.keys)
    figures = RunFiguresFile(session.roots.files(), session.profile.paths).read() if session.is_here else None
    return expected(figures.window if figures else None, outcome.window if outcome else None)


def _announce(session: Session, outcome: Outcome) -> None:
    """Report the outcome: in the log, in the termination log, and as an Event if the run changed anything."""
    failed = outcome.exit_code is not ExitCode.DONE
    if failed:
        session.log.error(outcome.what, exit_code=int(outcome.exit_code))
        session.log.advise(outcome.remedy)
    else:
        session.log.info(outcome.what)
    last = f"exit {outcome.exit_code.value}: {outcome.what}"
    line = sentences(last, outcome.remedy)
    write_termination_log(session.values[settings.TERMINATION_LOG], last, outcome.remedy)
    if outcome.changed:
        with session.clock.shielded():
            reason = events.DRIVER_RECONCILE_FAILED if failed else events.DRIVER_RECONCILED
            session.cluster.post_event(reason, line if failed else outcome.what, warning=failed)
