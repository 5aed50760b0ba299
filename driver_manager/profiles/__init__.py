"""Vendor profiles as TOML: the built-in ones, a user's file, and how one is picked for a node.

Owns finding and picking; a file is read by `reading`, and the shape is `driver_manager.domain.profile`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.profile import Profile
from driver_manager.profiles.reading import Reading, read
from driver_manager.profiles.rules import AUTO, MAX_TIMEOUT_S, may_pause

__all__ = ["AUTO", "MAX_FILE_BYTES", "MAX_TIMEOUT_S", "builtin", "known", "may_pause", "parse", "pick", "read_file"]

MAX_FILE_BYTES = 256 * 1024


def builtin() -> dict[str, Profile]:
    """The shipped profiles by name."""
    files = sorted(Path(__file__).parent.glob("*.toml"))
    found = (parse(entry.read_text(encoding="utf-8"), entry.name) for entry in files)
    return {profile.name: profile for profile in found}


def known(profile_file: str | None) -> dict[str, Profile]:
    """The shipped profiles, and the one in `profile_file`, which replaces one of the same name. Raises ConfigError."""
    profiles = builtin()
    if profile_file:
        own = _profile(read_file(profile_file), profile_file)
        profiles[own.name] = own
    return profiles


def read_file(path: str) -> Reading:
    """What a user's file says. Raises ConfigError where it cannot be read at all."""
    try:
        return read(_content(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"profile file {path} cannot be read: {error}", "Give a TOML file (PROFILE_FILE).") from error


def _content(path: str) -> str:
    """The whole file. Raises OSError, and ValueError for what is no small text file; waits for nobody."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES // 1024} KiB")
    return content.decode()


def pick(
    wanted: str, profiles: Mapping[str, Profile], labels: Iterable[str], has_device: Callable[[Profile], bool]
) -> Profile:
    """The profile called `wanted`, or for `auto` the one whose devices are present, else whose labels the node carries.

    Raises ConfigError for an unknown name, and where auto finds none or two.
    """
    if wanted != AUTO:
        if wanted in profiles:
            return profiles[wanted]
        raise ConfigError(
            f"there is no profile {wanted!r}", f"Use one of {', '.join(sorted(profiles))}, or auto (DRIVER_PROFILE)."
        )
    keys = list(labels)
    by_device = [profile for profile in profiles.values() if has_device(profile)]
    found = by_device or [profile for profile in profiles.values() if _is_labelled(profile, keys)]
    if len(found) == 1:
        return found[0]
    seen = ", ".join(profile.name for profile in found) or "no known PCI device and no known node label"
    raise ConfigError(
        f"the profile cannot be determined from this node: {seen}", "Name it with --profile (DRIVER_PROFILE)."
    )


def _is_labelled(profile: Profile, keys: list[str]) -> bool:
    prefix = profile.deploy.prefix
    return any((prefix and key.startswith(prefix)) or key in profile.present_labels for key in keys)


def parse(text: str, where: str) -> Profile:
    """The profile in `text`. Raises ConfigError naming `where`, the key, the value and what was expected."""
    return _profile(read(text), where)


def _profile(found: Reading, where: str) -> Profile:
    if found.profile is None:
        more = len(found.wrong) - 1
        and_more = f" (and {more} more)" if more else ""
        raise ConfigError(
            f"profile {where}: {found.wrong[0].what}{and_more}",
            "Fix the file; `driver-manager profile check` lists every mistake in it.",
        )
    return found.profile
