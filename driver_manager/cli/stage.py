"""`stage`: put a driver into a slot beside the one that runs. Needs no API server."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import click

from driver_manager import profiles, settings
from driver_manager.adapters.host.facts import read_host
from driver_manager.adapters.host.modules import kmod
from driver_manager.adapters.host.modules.tree import ModuleTrees
from driver_manager.adapters.host.pci import pci_devices
from driver_manager.adapters.host.roots import HostRoots
from driver_manager.adapters.host.slots import may_have_slots
from driver_manager.adapters.host.staging import Staged, Staging, Wanted
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.cli.help_screen import ScreenCommand
from driver_manager.cli.options import with_options
from driver_manager.cli.wiring import host_roots, log_form
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.digest import in_words, is_digest
from driver_manager.domain.errors import ConfigError, ExitCode, ModuleFailed, PreflightFailed
from driver_manager.domain.host import Host
from driver_manager.domain.profile import LoadScope, Profile
from driver_manager.domain.setting import Values
from driver_manager.domain.swap.preflight import remedies, source_checks

STAGE_TIMEOUT_S = 900.0
"""What another process that stages may take: copying a large driver to a slow disk."""

DEPMOD_S = 60.0

HOST_OPTIONS = (
    settings.DRIVER_PROFILE,
    settings.PROFILE_FILE,
    settings.HOST_ROOT,
    settings.PROC_ROOT,
    settings.SYS_ROOT,
    settings.DEV_ROOT,
)


@click.command(cls=ScreenCommand, name="stage", short_help="Stage a driver in a slot beside the running one.")
@click.option("--from", "source", required=True, metavar="DIR", help="Folder with the driver tree, in this container.")
@click.option("--verify", is_flag=True, help="Compare the checksums of a slot that is already staged.")
@with_options((settings.DRIVER_ROOT, settings.DRIVER_CONFIG_DIGEST), HOST_OPTIONS, settings.LOGGING)
def stage_command(*, source: str, verify: bool, values: Values) -> int:
    """Put the driver tree in DIR into a slot beside the driver root, for a run with DRIVER_LOAD=manager to swap to.

    The running driver is not touched. A slot is either complete or absent. A complete slot stays as it is; one that
    does not match its record is replaced, unless its driver is in use. Exit code 6 if there is not enough space, or if
    the kernel would not load this driver.
    """
    clock = SystemClock()
    clock.install()
    log = log_form(values).reporter(clock.wall)
    if not source:
        raise ConfigError("--from is empty", "Give the folder with the driver tree.")
    digest = values[settings.DRIVER_CONFIG_DIGEST]
    if not is_digest(digest):
        raise ConfigError(
            "the digest of the driver to stage is not known",
            "Set DRIVER_CONFIG_DIGEST to the same value as in the run that loads it.",
        )
    roots = host_roots(values)
    profile = profile_of_host(values, roots)
    root = (values[settings.DRIVER_ROOT] or profile.paths.driver_root).rstrip("/")
    if not may_have_slots(profile, roots.files().real(root)):
        raise ConfigError(
            f"the {profile.name} driver in {root or '/'} cannot be staged: slots are for a driver that is swapped in "
            "place, in a folder of its own",
            "Set DRIVER_PROFILE and DRIVER_ROOT as in the run that loads the driver.",
        )
    host = read_host(roots, profile, root, None, loads=False)
    staging = Staging(roots.files(), root, clock, verifies=verify)
    wanted = Wanted(Path(source), digest, host.kernel_release, is_loaded=bool(host.modules))
    done = staging.stage(wanted, lambda path: _judged(roots, profile, host, path), STAGE_TIMEOUT_S)
    if done.left:
        log.warn(f"the slot {done.path} does not match its record, and stays: its driver is in use. {done.left}")
    if done.replaced:
        log.warn(f"the slot {done.path} did not match its record and was replaced: {done.replaced}")
    log.info(_summary(done, digest))
    return ExitCode.DONE


def profile_of_host(values: Values, roots: HostRoots) -> Profile:
    """The profile, by name or by the devices on PCI: the Node is not asked. Raises ConfigError."""
    known = profiles.known(values[settings.PROFILE_FILE])
    return profiles.pick(values[settings.DRIVER_PROFILE], known, (), lambda one: bool(pci_devices(roots, one)))


def _judged(roots: HostRoots, profile: Profile, host: Host, path: str) -> str:
    """The version of the driver in the tree at `path` on the host. Raises PreflightFailed where it would not load."""
    if profile.modules.load is LoadScope.ROOTS:
        with contextlib.suppress(ModuleFailed):  # the run makes it, where it can
            kmod.make_list(roots.files().path(path), host.kernel_release, Deadline.after(DEPMOD_S, time.monotonic))
    trees = ModuleTrees(
        roots.files(), roots.proc, roots.sys, host.kernel_release, profile.modules, profile.paths.firmware
    )
    source = trees.source(path, profile.modules.roots)
    failed = [check for check in source_checks(source, host) if check.ok is False]
    if failed:
        what = "; ".join(check.what.replace(path, "the driver to stage") for check in failed)
        raise PreflightFailed(f"not staged: {what}", remedies(failed))
    return source.version


def _summary(done: Staged, digest: str) -> str:
    text = f"{in_words(digest)}, driver {done.version or '(no version)'}"
    return f"already staged: {text}" if done.was_there else f"staged: {text} in {done.path}"
