"""The steps that load a driver, what they go back to when it does not load, and the preflight before them.

Pure. Must not import the planner, which builds its rows from these.
"""

from __future__ import annotations

from driver_manager.domain.errors import ModuleStuck, PreflightFailed
from driver_manager.domain.journal import OldDriver
from driver_manager.domain.listing import several
from driver_manager.domain.model import Loader
from driver_manager.domain.modules import beside
from driver_manager.domain.profile import Strategy
from driver_manager.domain.swap.driver_state import places_us
from driver_manager.domain.swap.plan import AnyStep
from driver_manager.domain.swap.preflight import firmware_notes, problems, remedies
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.modules import LoadModules, RecordDigest


def loading(now: Situation) -> list[AnyStep]:
    """Steps that load the wanted driver and record its digest; none where its container does, or none is wanted."""
    source = now.host.source
    # There is no way back from a driver that must not be unloaded.
    previous = now.host.previous_source if now.profile.strategy is Strategy.IN_PLACE else None
    if now.policy.loader is Loader.CONTAINER or source is None or places_us(now):
        return []
    paths, digest = now.profile.paths, now.obs.digest
    return [
        LoadModules(source, previous, _digest_to_go_back_to(now), _further_modules(now)),
        *([RecordDigest(paths.state_file, digest, paths.load_record, source)] if digest else []),
    ]


def notes(now: Situation) -> tuple[str, ...]:
    """What is worth a warning before the wanted driver is loaded; nothing where its container does."""
    source = now.host.source
    return () if now.policy.loader is Loader.CONTAINER or source is None else firmware_notes(source)


def _old_driver(now: Situation) -> OldDriver | None:
    """What the journal of this boot knows of the driver to go back to."""
    journal = now.obs.journal
    return journal.driver if journal is not None and journal.boot_id == now.host.boot_id else None


def _further_modules(now: Situation) -> tuple[str, ...]:
    """Modules of the driver that were loaded beside its roots, in the order to load those again that are not back."""
    # Of whatever boot: a reboot in between takes them away as an unload does.
    old, roots = now.obs.journal.driver if now.obs.journal else None, now.profile.modules.roots
    if old is None:
        return beside(now.host.modules, roots)
    return tuple(name for name in reversed(old.modules) if name not in roots)


def _digest_to_go_back_to(now: Situation) -> str:
    old = _old_driver(now)
    return old.digest if old is not None else now.host.digest or ""


def check(now: Situation, *, keeps_driver: bool = False) -> None:
    """Raise PreflightFailed, which names every problem, when the driver could not be replaced or loaded.

    `keeps_driver`: the run loads and unloads no module.

    ModuleStuck while the kernel unloads a module of the driver: a load of it waits for that, for ever perhaps, or is
    refused as busy (kernel/module/main.c, add_unformed_module).
    """
    if now.host.leaving:
        raise ModuleStuck(
            f"the kernel is still unloading module {several(now.host.leaving)}",
            "Run again. If it stays so, only a reboot of the node helps; the run after it goes on. The kernel log "
            "(dmesg) may say what the module waits for.",
        )
    found = problems(now, keeps_driver=keeps_driver)
    if found:
        what = "; ".join(problem.what for problem in found)
        raise PreflightFailed(f"preflight: {what}", remedies(found))
