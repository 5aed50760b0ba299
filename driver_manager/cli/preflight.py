"""`preflight`: would a reconcile that replaces the driver, or gives the devices to virtual machines, succeed."""

from __future__ import annotations

from dataclasses import asdict

import click

from driver_manager import schemas, settings
from driver_manager.adapters.report.termination_log import write_termination_log
from driver_manager.cli.help_screen import ScreenCommand
from driver_manager.cli.kernel_checks import kernel_checks
from driver_manager.cli.options import output_option, styled, with_options
from driver_manager.cli.printing import in_form, put
from driver_manager.cli.vfio import mode_option, policy_for
from driver_manager.cli.wiring import open_session
from driver_manager.core.swap.reconcile import decide, rehearsed
from driver_manager.domain.errors import ConfigError, ExitCode, ManagerError, PodsRemain, PreflightFailed
from driver_manager.domain.escaping import one_line
from driver_manager.domain.listing import several
from driver_manager.domain.observation import Observation
from driver_manager.domain.pods.workloads import PodAction, with_action
from driver_manager.domain.policy import Mode, Policy
from driver_manager.domain.profile import Profile
from driver_manager.domain.setting import Values
from driver_manager.domain.swap.plan import Plan
from driver_manager.domain.swap.preflight import Check, access, checks, remedies, rights_to_replace
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.waits import WaitForHolders, WaitForStuckPods
from driver_manager.domain.swap.vfio_rows import impossible
from driver_manager.ports.node import Cluster, Ports

_GROUPS = (settings.CLUSTER, settings.DRIVER, settings.WORKLOADS, settings.HOST, settings.LOGGING)
_WISHED = ("create", "events")
_MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("?", "yellow")}


@click.command(cls=ScreenCommand, name="preflight", short_help="Check whether the driver could be replaced now.")
@mode_option
@click.option("--kernel", metavar="RELEASE", default="", help="Check for another kernel.")
@output_option
@with_options(*_GROUPS, (settings.VFIO_BIND,))
def preflight_command(*, mode: str, kernel: str, output: str, values: Values) -> int:
    """Check whether the driver could be replaced now; with --kernel, whether it fits another kernel.

    With --mode vfio: whether virtual machines could get the devices. Changes nothing. Exit code 6 if not; with --kernel
    also if that is unknown.
    """
    if kernel:
        return _of_other_kernel(kernel, Mode(mode), values, output)
    wanted = policy_for(values, Mode(mode))
    session = open_session(values, api_timeout_s=settings.BY_HAND_API_TIMEOUT_S, mode=wanted.mode)
    obs = session.observe(session.node)
    if obs.host is None:
        raise ConfigError(f"this is not node {obs.node.name}", "Run it on the node, with the host at /host.")
    needed = rights_to_replace(session.profile, wanted)
    now = Situation.of(obs, session.profile, wanted)
    found = (
        *checks(now),
        *(_devices(now) if wanted.mode is Mode.VFIO else ()),
        *_workloads(session.ports(), obs, session.profile, wanted),
        *access(session.cluster.refused(needed), needed),
        *_wished(session.cluster),
    )
    return _ended(found, [check for check in found if check.ok is False], values, output)


def _of_other_kernel(release: str, mode: Mode, values: Values, output: str) -> int:
    """The checks of a kernel that does not run: unknown is no pass, but for firmware that no device may need."""
    if mode is not Mode.CONTAINER:
        raise ConfigError("--kernel is for the driver of containers", "Leave out --mode vfio.")
    decisive, notes = kernel_checks(release, values)
    return _ended((*decisive, *notes), [check for check in decisive if not check.ok], values, output)


def _ended(found: tuple[Check, ...], failed: list[Check], values: Values, output: str) -> int:
    body = {"schemaVersion": schemas.VERSION, "checks": [asdict(check) for check in found]}
    put(in_form(output, body, lambda _: _text(found, failed)))
    if not failed:
        return ExitCode.DONE
    what = several((f"{check.name}: {check.what}" for check in failed), "; ")
    write_termination_log(values[settings.TERMINATION_LOG], what, remedies(failed))
    return ExitCode.PREFLIGHT_FAILED


def _devices(now: Situation) -> tuple[Check, ...]:
    """Whether virtual machines could have the devices."""
    wrong = tuple(Check("devices", False, what, remedy) for what, remedy in impossible(now).items())
    count = len(now.host.bus.functions)
    return wrong or (Check("devices", True, f"{count} device(s) can be bound to vfio"),)


def _workloads(ports: Ports, obs: Observation, profile: Profile, wanted: Policy) -> tuple[Check, ...]:
    """Whether the pods that use the driver would leave, as far as their budgets tell now."""
    try:
        _, decided = decide(ports, obs, profile, wanted)
        decided = rehearsed(ports, decided)
    except PodsRemain as error:
        return (Check("workloads", False, error.what, error.remedy),)
    except PreflightFailed:
        return ()  # another check says so
    except ManagerError as error:
        return (Check("plan", False, error.what, error.remedy),)
    targets = with_action(decided.workloads, PodAction.EVICT)
    blocked = tuple(Check("workloads", None, warning) for warning in decided.warnings)
    return (
        *_in_the_way(decided),
        *blocked,
        Check("workloads", True, f"{len(targets)} pod(s) that use the accelerator would be evicted"),
    )


def _in_the_way(decided: Plan) -> tuple[Check, ...]:
    """What a run would wait for with everything in place, and refuse to go on without."""
    found = []
    for step in decided.steps:
        match step:
            case WaitForHolders():
                remedy = "Stop what holds the device; for the vendor's host services use --stop-host-services."
                found.append(Check("device", False, f"the device is in use: {several(step.holders, '; ')}", remedy))
            case WaitForStuckPods():
                what = f"{several(step.pods)} should already have ended"
                found.append(Check("operands", False, what, "Remove what holds each pod (`driver-manager status`)."))
    return tuple(found)


def _wished(cluster: Cluster) -> tuple[Check, ...]:
    """A right without which a run only says less."""
    if not cluster.refused((_WISHED,)):
        return (Check("may create events", True, "this account may create events in namespace default"),)
    return (Check("may create events", None, "this account may not create events in namespace default: a warning"),)


def _text(found: tuple[Check, ...], failed: list[Check]) -> str:
    lines = []
    for check in found:
        mark, colour = _MARKS[check.ok]
        lines.append(f"{styled(mark, fg=colour)} {check.name}: {one_line(check.what)}")
        if check in failed:
            lines.append(f"    what to do: {one_line(check.remedy)}")
    return "\n".join(lines)
