"""What it means that the host refuses a file of the driver to us: one error, for all who read and change them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from driver_manager.domain.errors import ConfigError


@contextmanager
def translated(path: str) -> Generator[None, None, None]:
    """A ConfigError that names `path` in place of an OSError."""
    try:
        yield
    except OSError as error:
        raise refused(path, error) from error


def refused(path: str | bytes, error: OSError) -> ConfigError:
    """The error for `path`."""
    return ConfigError(
        f"cannot read or change {path!s} on the host: {error.strerror}",
        "Run as root, with the vendor's folders of the host mounted read-write.",
    )
