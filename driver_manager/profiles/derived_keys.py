"""Names of keys on the Node that a profile file may leave out: they follow from that of the journal."""

from __future__ import annotations

import dataclasses
import re

from driver_manager.domain.profile import Profile
from driver_manager.profiles.rules import PREFIXED_KEY

_DERIVED = ("state", "last_outcome", "mute_until", "rollout", "generation")
_JOURNAL_END = ".journal"
_OWN_NAME = "driver-manager"


def with_derived_keys(profile: Profile) -> Profile:
    """`profile` with the keys that its file may leave out, made from that of the journal."""
    keys, (domain, _, name) = profile.keys, profile.keys.journal.rpartition("/")
    named = name.removesuffix(_JOURNAL_END) if name.endswith(_JOURNAL_END) else _OWN_NAME

    def derived(end: str) -> str:
        wanted = f"{domain}/{named}.{end}"
        is_fit = re.fullmatch(PREFIXED_KEY, wanted) and wanted not in keys.names
        return wanted if is_fit else f"{domain}/{_OWN_NAME}.{end}"

    found = {name: getattr(keys, name) or derived(name.replace("_", "-")) for name in _DERIVED}
    return dataclasses.replace(profile, keys=dataclasses.replace(keys, **found))
