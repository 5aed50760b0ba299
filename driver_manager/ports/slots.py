"""What a swap to a staged driver needs from the outside, as a protocol. Adapters implement it, and the tests."""

from __future__ import annotations

from typing import Protocol


class SlotFolders(Protocol):
    """Effects on the slots beside a driver root; paths are absolute on the host. Reading them belongs to the facts."""

    def keep_root(self, root: str, digest: str, version: str) -> None:
        """Record what is in the folder `root`, so that it can be a slot; nothing where that is recorded already.

        Raises PreflightFailed where the folder could not become a slot in one operation.
        """
        ...

    def flip(self, root: str, target: str, kept: str) -> None:
        """Let `root` lead to `target`, in one operation; nothing where it does already.

        A folder at `root` is the slot `kept` from then on, in the same operation; an empty one goes where `kept` is "".
        Raises ModuleFailed, and `root` is as it was.
        """
        ...

    def remove(self, root: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """Remove slots, but never the one that `root` leads to; names of those that went. None while somebody stages.

        A slot is gone at once or not at all. Raises ModuleFailed.
        """
        ...
