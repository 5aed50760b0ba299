"""`health-watch`: check the options, then become a lean interpreter that runs the loop."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict

from driver_manager.adapters.host.files import HostRoots, boot_id
from driver_manager.adapters.host.health import HostMarks
from driver_manager.adapters.host.notes import load_text, read_baseline
from driver_manager.adapters.host.probe import ToolProber
from driver_manager.adapters.kube import transport
from driver_manager.adapters.kube.transport import SERVICE_HOST, SERVICE_PORT
from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.process.supervisor import Supervisor
from driver_manager.adapters.report.http import parse_address
from driver_manager.cli import lean, session
from driver_manager.cli.health_watch_loop import TARGET, Launch, RecoverySettings
from driver_manager.cli.lean import NodeWay
from driver_manager.cli.main import warn_of_mistyped
from driver_manager.cli.options import command, in_form, output_option, put, with_options
from driver_manager.core.health import WatchPolicy
from driver_manager.domain import settings
from driver_manager.domain.errors import ConfigError, ExitCode
from driver_manager.domain.health.watch import compared, decode_watch_record
from driver_manager.domain.host import Health
from driver_manager.domain.profile import Profile, RecoveryStep
from driver_manager.domain.settings import Setting, Values
from driver_manager.domain.text import json_text
from driver_manager.domain.wire import body_of

_ONCE_CODES = {
    Health.HEALTHY: ExitCode.DONE,
    Health.UNHEALTHY: ExitCode.MODULE_FAILED,
    Health.UNKNOWN: ExitCode.PREFLIGHT_FAILED,
}
"""Exit codes of `--once`: 0 healthy, 5 the driver does not serve its devices, 6 unknown."""


@command(
    "health-watch", "Watch the driver's health continuously, as a sidecar of the driver container.", is_of_pods=True
)
@click.option("--once", is_flag=True, help="Take one sample, print it, change nothing: exit 0, 5 unhealthy, 6 unknown.")
@click.option("--handover", is_flag=True, hidden=True, help="Print the settings of the loop, for a reload.")
@output_option
@with_options(
    settings.HEALTH,
    settings.HOST,
    (settings.DRIVER_ROOT, settings.EVIDENCE_DIR, settings.NODE_NAME, settings.CLIENT_SELECTOR),
    settings.RECOVERY,
    settings.LOGGING,
)
def health_watch_command(*, once: bool, handover: bool, output: str, values: Values) -> int:
    """Run the profile's probe at an interval; after several consecutive failures the driver counts as wedged.

    Then the driver's ready marker is withdrawn, and the steps of a recovery are taken, each once it is approved or in
    AUTO_RECOVER: reset the device, reload the driver, ask for a reboot. A driver that recovers gets its marker back.
    SIGHUP reloads the profile.
    """
    launch = _launch(values)
    if once:
        return _once(launch, output)
    log = session.log_form(values)
    document = launch.to_document()
    if not handover:
        warn_of_mistyped(log.reporter(time.time))
        lean.become(TARGET, document, log)
    put(json_text({"document": document, "log": asdict(log)}))
    return ExitCode.DONE


def _launch(values: Values) -> Launch:
    """The settings of the loop, checked. Raises ConfigError."""
    roots = session.host_roots(values)
    boot_id(roots)  # fail now if the host cannot be read, and not at every turn
    profile = _profile(values, roots)
    timeout_s = values[settings.HEALTH_WATCH_TIMEOUT]
    policy = WatchPolicy(
        interval_s=values[settings.HEALTH_WATCH_INTERVAL],
        failures=values[settings.HEALTH_WATCH_FAILURES],
        timeout_s=profile.probe.timeout_s if timeout_s is None and profile.probe else timeout_s or 0.0,
        node=values[settings.NODE_NAME],
        settle_s=profile.probe.settle_s if profile.probe else 0.0,
        has_steps_before_reboot=bool({*profile.recovery} - {RecoveryStep.REBOOT}),
    )
    session.refuse_zero(settings.HEALTH_WATCH_INTERVAL, policy.interval_s)
    session.refuse_zero(settings.HEALTH_WATCH_TIMEOUT, policy.timeout_s)
    for option in (settings.METRICS_TEXTFILE, settings.HEALTH_WATCH_READY_FILE, settings.ALIVE_FILE):
        _refuse_without_folder(option, values[option])
    if values[settings.METRICS_ADDR]:
        parse_address(values[settings.METRICS_ADDR])
    no_way = _why_no_way(values)
    return Launch(
        roots=roots,
        profile=profile,
        policy=policy,
        driver_root=values[settings.DRIVER_ROOT] or profile.paths.driver_root,
        metrics_addr=values[settings.METRICS_ADDR],
        metrics_textfile=values[settings.METRICS_TEXTFILE],
        ready_file=values[settings.HEALTH_WATCH_READY_FILE],
        alive_file=values[settings.ALIVE_FILE],
        way=None
        if no_way
        else NodeWay(
            node=values[settings.NODE_NAME],
            account=str(transport.SERVICE_ACCOUNT),
            host=os.environ[SERVICE_HOST],
            port=os.environ[SERVICE_PORT],
        ),
        no_way=no_way,
        is_way_blocked=bool(no_way) and bool(transport.proxy_in_pod(os.environ)),
        client_selector=session.selector(values, settings.CLIENT_SELECTOR).text,
        recovery=_recovery(values, profile),
        argv=tuple(click.get_current_context().find_root().obj or ()),
    )


def _recovery(values: Values, profile: Profile) -> RecoverySettings:
    consents = session.eviction_consents(values)
    return RecoverySettings(
        auto=tuple(sorted(session.automatic_steps(values), key=tuple(RecoveryStep).index)),
        namespace=values[settings.OPERATOR_NAMESPACE] or values[settings.POD_NAMESPACE] or profile.namespace,
        evicts=values[settings.ENABLE_NPU_POD_EVICTION],
        forces=consents.forces,
        deletes_empty_dirs=consents.deletes_empty_dirs,
        device_classes=consents.device_classes,
    )


def _refuse_without_folder(option: Setting[str], path: str) -> None:
    if path and not Path(path).parent.is_dir():
        raise ConfigError(
            f"the folder of {option.flag} {path} does not exist", f"Mount that folder writable, or fix {option.flag}."
        )


def _why_no_way(values: Values) -> str:
    """Why a process in this pod cannot reach the Node, "" if it can."""
    if not (transport.SERVICE_ACCOUNT / transport.TOKEN_FILE).exists():
        return f"there is no service account token at {transport.SERVICE_ACCOUNT}"
    if proxy := transport.proxy_in_pod(os.environ):
        return f"{proxy} is set, and health-watch uses no proxy; add {os.environ.get(SERVICE_HOST)} to NO_PROXY"
    if not (os.environ.get(SERVICE_HOST) and os.environ.get(SERVICE_PORT)):
        return f"{SERVICE_HOST} and {SERVICE_PORT} are not set"
    return "" if values[settings.NODE_NAME] else f"{settings.NODE_NAME.env} is not set"


def _profile(values: Values, roots: HostRoots) -> Profile:
    profile = session.with_shown_state(session.profile_of_host(values, roots), values)
    profile = session.with_evidence(profile, values)
    if profile.probe is None:
        raise ConfigError(
            f"the profile {profile.name} has no probe", "Add [probe] to it; the shipped profiles show how."
        )
    return profile


def _once(launch: Launch, output: str) -> int:
    clock = LoopClock()
    clock.install()
    begun = time.monotonic()
    supervisor = Supervisor(clock, launch.roots.proc)
    roots, profile, this_boot = launch.roots, launch.profile, boot_id(launch.roots)
    history = decode_watch_record(HostMarks(roots, profile, clock).recall(), this_boot)
    if history.stuck is not None:
        supervisor.inherit(history.stuck)
    found = ToolProber(roots, profile, launch.driver_root, supervisor, launch.policy.timeout_s).sample()
    before = read_baseline(roots.files(), profile.paths, this_boot)
    result = compared(found, load_text(roots, profile.modules), before, history)
    code = _ONCE_CODES[result.health]
    body = {
        "health": result.health.value,
        "reason": result.reason,
        "devices": list(map(body_of, result.devices)),
        "tookSeconds": round(time.monotonic() - begun, 3),
        "exitCode": int(code),
    }
    put(in_form(output, body, _as_text))
    return code


def _as_text(body: dict[str, Any]) -> str:
    lines = [f"{body['health']}: {body['reason']}"]
    lines += [f"  {one['name']} {one['address']}: {one['health']} ({one['reason']})" for one in body["devices"]]
    return "\n".join(lines)
