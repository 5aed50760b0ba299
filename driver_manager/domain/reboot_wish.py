"""What a reboot was asked for, kept on the host's disk over that reboot: one versioned JSON file.

Without it, a wish that a reboot does not fulfil (the host loads a driver of its own, a reinstall stays forced) would
ask for the next reboot after each. Pure.
"""

from __future__ import annotations

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.wire import Form


class RebootWish(Frozen):
    """In the boot `boot_id` of `node`, a reboot was asked for so that the driver with the digest `to_driver` is loaded.

    `is_forced`: whether it was loaded already, or not.
    """

    boot_id: str
    node: str
    to_driver: str
    is_forced: bool = False


class WishUnreadable(ConfigError):
    """The file is not one that this version can act on."""


FORM = Form(
    "the record of the last reboot request",
    WishUnreadable,
    "Remove the file on the host; the reboot may then be requested once more.",
)


def encode(wish: RebootWish) -> str:
    """The file's content: one line of JSON."""
    body = {"bootId": wish.boot_id, "node": wish.node, "to": wish.to_driver, "forced": wish.is_forced}
    return FORM.write(body) + "\n"


def decode(text: str) -> RebootWish:
    """The wish in `text`. Raises WishUnreadable."""
    body = FORM.read(text)
    return RebootWish(body.text("bootId"), body.text("node"), body.text("to"), body.flag("forced"))
