"""The steps that load a driver, what they go back to when it does not load, and the preflight before them.

Pure. Must not import the planner, which builds its rows from these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from driver_manager.domain.errors import ModuleStuck, PreflightFailed
from driver_manager.domain.journal import OldDriver
from driver_manager.domain.listing import several
from driver_manager.domain.modules import beside, unload_order
from driver_manager.domain.parameters import kept, options
from driver_manager.domain.policy import Loader
from driver_manager.domain.profile import Strategy
from driver_manager.domain.swap import staged_swap
from driver_manager.domain.swap.driver_state import places_us
from driver_manager.domain.swap.plan import AnyStep
from driver_manager.domain.swap.preflight import firmware_notes, problems, remedies, versions
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.modules import (
    LoadModules,
    RecordDigest,
    RemoveConflicting,
    SetFirmwarePath,
)


def loading(now: Situation) -> list[AnyStep]:
    """Steps that load the wanted driver and record its digest; none where its container does, or none is wanted."""
    source = now.host.source
    # There is no way back from a driver that must not be unloaded.
    previous = now.host.previous_source if now.profile.strategy is Strategy.IN_PLACE else None
    if now.policy.loader is not Loader.MANAGER or source is None or places_us(now):
        return []
    paths, digest = now.profile.paths, now.obs.digest
    given = options(now.profile.modules.parameters, _values_to_keep(now))
    source = replace(source, given=given)
    previous = replace(previous, given=given) if previous is not None else None
    return [
        *staged_swap.flip(now),
        *_firmware_path(now),
        LoadModules(source, previous, _digest_to_go_back_to(now), _further_modules(now)),
        *([RecordDigest(paths.state_file, digest, paths.load_record, source)] if digest else []),
    ]


def making_way(now: Situation) -> list[AnyStep]:
    """The step that unloads what must not be loaded beside the driver that is to come; none for who only uninstalls."""
    names = unload_order(now.host.removable, ())
    return [RemoveConflicting(names)] if names and not places_us(now) else []


def _firmware_path(now: Situation) -> list[AnyStep]:
    wanted = now.profile.paths.firmware
    return [SetFirmwarePath(wanted)] if wanted and wanted != now.host.firmware_path else []


def _values_to_keep(now: Situation) -> Mapping[str, str]:
    """Parameters of the driver before; those that a run of this boot noted were read while that one was loaded."""
    old = now.obs.journal.driver if now.obs.journal else None
    return (
        old.parameters
        if old is not None and old.modules
        else kept(now.host.parameters, now.profile.modules.keep_parameters)
    )


def notes(now: Situation) -> tuple[str, ...]:
    """What is worth a warning before the wanted driver is loaded; nothing where its container does."""
    source = now.host.source
    if now.policy.loader is not Loader.MANAGER or source is None:
        return ()
    return (*firmware_notes(source), *staged_swap.notes(now))


def _old_driver(now: Situation) -> OldDriver | None:
    """What the journal of this boot knows of the driver to go back to."""
    journal = now.obs.journal
    return journal.driver if journal is not None and journal.boot_id == now.host.boot_id else None


def _further_modules(now: Situation) -> tuple[str, ...]:
    """Modules of the driver that were loaded beside its roots, in the order to load those again that are not back."""
    old, roots = now.obs.journal.driver if now.obs.journal else None, now.profile.modules.roots
    if old is None or not old.modules:
        return beside(now.host.modules, roots, now.profile.modules.order)
    return tuple(name for name in reversed(old.modules) if name not in roots)


def _digest_to_go_back_to(now: Situation) -> str:
    old = _old_driver(now)
    return old.digest if old is not None else now.host.digest or ""


def refuse_versions(now: Situation) -> None:
    """Raise PreflightFailed where the profile does not let the loaded driver become the wanted one."""
    refused = [one for one in versions(now) if one.ok is False]
    if refused:
        raise PreflightFailed(f"preflight: {refused[0].what}", refused[0].remedy)


def check(now: Situation, *, keeps_driver: bool = False) -> None:
    """Raise PreflightFailed, which names every problem, when the driver could not be replaced or loaded.

    `keeps_driver`: the run loads and unloads no module.

    ModuleStuck while the kernel unloads a module of the driver: a load of it waits for that, for ever perhaps, or is
    refused as busy (kernel/module/main.c, add_unformed_module).
    """
    if now.host.leaving:
        raise ModuleStuck(
            f"the kernel is still unloading module {several(now.host.leaving)}",
            "Run again. If it persists, reboot the node; the next run continues. The kernel log (dmesg) may show what "
            "the module waits for.",
        )
    found = problems(now, keeps_driver=keeps_driver)
    if found:
        what = "; ".join(problem.what for problem in found)
        raise PreflightFailed(f"preflight: {what}", remedies(found))
