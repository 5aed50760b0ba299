"""What `preflight --kernel RELEASE` looks at: a kernel that does not run yet. Needs no API server, changes nothing."""

from __future__ import annotations

from driver_manager import settings
from driver_manager.adapters.host.facts import enforces_signatures
from driver_manager.adapters.host.modules.other_kernel import OtherKernel
from driver_manager.adapters.host.modules.tree import HOST, ModuleTrees
from driver_manager.adapters.host.sources import Sources
from driver_manager.cli.stage import profile_of_host
from driver_manager.cli.wiring import host_roots
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.host import Host
from driver_manager.domain.setting import Values
from driver_manager.domain.swap.preflight import Check, firmware_checks, source_checks

_INSTALL = "Install that kernel and its headers on the host (without a reboot), then run again."


def kernel_checks(release: str, values: Values) -> tuple[tuple[Check, ...], tuple[Check, ...]]:
    """What decides whether the kernel `release` would load the driver, and what is only worth a note.

    Whether it enforces signatures is taken from the kernel that runs. Raises ConfigError for what is no release.
    """
    if "/" in release or release.strip(".") == "" or release != release.strip():
        raise ConfigError(f"--kernel is {release!r}, which is not a kernel release", "Write it as uname -r prints it.")
    roots, other = host_roots(values), OtherKernel(host_roots(values).files(), release)
    profile = profile_of_host(values, roots)
    trees = ModuleTrees(
        roots.files(), roots.proc, roots.sys, release, profile.modules, profile.paths.firmware, other=other
    )
    source = Sources(trees, profile, None, "").wanted(values[settings.DRIVER_ROOT])
    host = Host(boot_id="", kernel_release=release, enforces_signatures=enforces_signatures(roots.sys))
    has_tree = any(roots.files().exists(f"{HOST}lib/modules/{release}/modules.{name}") for name in ("dep", "builtin"))
    tree = Check("kernel on the host", True, f"the host has modules of kernel {release}")
    if not has_tree:
        what = f"the host has no modules of kernel {release}: its options and checksums are unknown"
        tree = Check("kernel on the host", None, what, _INSTALL)
    found = (_with_remedy(check) for check in source_checks(source, host))
    return (tree, *found), firmware_checks(source)


def _with_remedy(check: Check) -> Check:
    """`check`, where it is unknown, with what lets it be known."""
    return check if check.ok is not None else Check(check.name, None, check.what, check.remedy or _INSTALL)
