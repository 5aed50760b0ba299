"""Whether a host that ships and loads its driver itself has loaded the wanted one (`DRIVER_LOAD=none`).

Such hosts let nobody else load a module, or lose at the next boot what anybody did: a run looks, and names what the
host's administrator has to do. Pure. Must not import the planner or the preflight, which ask here.
"""

from __future__ import annotations

from driver_manager.domain.digest import FROM_ENVIRONMENT, differing, in_words
from driver_manager.domain.errors import ManagerError, ModuleStuck, PreflightFailed, RebootRequired
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.listing import several
from driver_manager.domain.profile import Strategy
from driver_manager.domain.swap.driver_state import is_loaded, places_us
from driver_manager.domain.swap.situation import Situation

_UPDATE = "Update the host image or extension that ships the driver, then reboot the node. This run changes nothing."
_REBOOT = "Drain and reboot the node: the host loads the driver of its image at boot. This run does not reboot it."
_NAME_IT = "Set DRIVER_VERSION to the version that the host has to have loaded."


class Verified(Frozen):
    """Why there is nothing to do; `doubts` are what could not be determined."""

    reason: str
    doubts: tuple[str, ...] = ()


def verified(now: Situation) -> Verified:
    """Why the driver that the kernel has is the wanted one: by DRIVER_VERSION where it is set, else by
    DRIVER_CONFIG_DIGEST, else by what the host has on disk.

    Raises RebootRequired where the host has the wanted driver on disk and another one loaded, or where only a reboot
    replaces a driver and its disk is not known; PreflightFailed where the host has to be updated first, and where an
    expectation cannot be compared; ModuleStuck while the kernel unloads a module of the driver.
    """
    host = now.host
    if host.leaving:
        raise ModuleStuck(
            f"the kernel is unloading module {several(host.leaving)}, and the host has to load the driver again",
            "Reboot the node. The kernel log (dmesg) may show what the module waits for.",
        )
    if places_us(now):
        return _uninstalled(now)
    missing = tuple(name for name in now.profile.modules.roots if name not in host.modules)
    if not now.profile.modules.are_loaded(lambda name: name in host.modules):
        raise _not_loaded(now, missing)
    loaded, on_disk = _versions(now)
    if now.policy.driver_version:
        return _by_version(now, loaded, on_disk)
    if now.obs.digest_source == FROM_ENVIRONMENT:
        return _by_digest(now, loaded)
    if not loaded or not on_disk:
        side = "loaded module" if on_disk else "host's disk"
        doubt = f"unknown whether the host's image has another driver: the {side} shows no version. {_NAME_IT}"
        return Verified(_reason(loaded), (doubt,))
    if loaded != on_disk:
        raise _differs(now, f"driver {loaded} is loaded, and the host has {on_disk} on disk", has_wanted=True)
    return Verified(_reason(loaded))


def _reason(loaded: str, by: str = "") -> str:
    return f"driver is current: {by}version {loaded or 'unknown'}, loaded by the host itself (DRIVER_LOAD=none)"


def _uninstalled(now: Situation) -> Verified:
    if not is_loaded(now.host, now.profile):
        return Verified("no driver is loaded: there is nothing to uninstall")
    raise PreflightFailed(
        f"pod {now.obs.own_pod}, which is placed by {places_us(now)}, needs the driver uninstalled, and the host loads "
        "it itself (DRIVER_LOAD=none)",
        "Remove the driver from the host image or from the modules that it loads at boot, then reboot the node.",
    )


def _not_loaded(now: Situation, missing: tuple[str, ...]) -> PreflightFailed:
    source, names = now.host.source, several(missing)
    what = f"the host has to load the driver itself (DRIVER_LOAD=none), and module {names} is not loaded"
    if source is None or source.problem:
        there = f": {source.problem}" if source is not None else ""
        remedy = f"Add the driver for kernel {now.host.kernel_release} to the host image, then reboot the node."
        return PreflightFailed(f"{what}{there}", remedy)
    remedy = f"Add {names} to the modules that the host loads at boot, then reboot the node."
    return PreflightFailed(f"{what}; version {source.version or 'unknown'} is on the host's disk", remedy)


def _versions(now: Situation) -> tuple[str, str]:
    """Version of the first root that tells one, as it is loaded and as it is on the host's disk; "" where unknown."""
    host = now.host
    files = {file.name: file.version for file in host.source.modules} if host.source is not None else {}
    roots = [name for name in now.profile.modules.roots if name in host.modules]
    name = next((name for name in roots if host.modules[name].version), roots[0])
    return host.modules[name].version, files.get(name, "")


def _by_version(now: Situation, loaded: str, on_disk: str) -> Verified:
    wanted = now.policy.driver_version
    if not loaded:
        raise PreflightFailed(
            f"driver {wanted} is wanted, and the version of the loaded driver cannot be determined",
            "Unset DRIVER_VERSION if the module of this driver never has a version.",
        )
    if loaded == wanted:
        return Verified(_reason(loaded))
    disk = f"the host has {on_disk} on disk" if on_disk else "what the host has on disk is unknown"
    what = f"driver {loaded} is loaded, {wanted} is wanted, and {disk}"
    raise _differs(now, what, has_wanted=on_disk == wanted if on_disk else None)


def _by_digest(now: Situation, loaded: str) -> Verified:
    host, digest = now.host, now.obs.digest
    if host.digest is None:
        why = host.digest_problem or f"the host has none recorded in {now.profile.paths.state_file}"
        raise PreflightFailed(f"the wanted digest {in_words(digest)} cannot be compared: {why}", _NAME_IT)
    if host.digest == digest:
        return Verified(_reason(loaded, f"digest {in_words(digest)}, "))
    recorded, wanted, hint = differing(host.digest, digest)
    raise _differs(now, f"recorded digest {recorded} differs from the wanted {wanted}{hint}", has_wanted=None)


def _differs(now: Situation, what: str, *, has_wanted: bool | None) -> ManagerError:
    """The error for another driver than the wanted one; `has_wanted`: whether the host has that on its disk."""
    by_reboot = has_wanted is None and now.profile.strategy is Strategy.REBOOT
    if has_wanted or by_reboot:
        return RebootRequired(what, _REBOOT if has_wanted else _UPDATE)
    return PreflightFailed(what, _UPDATE)
