"""Who loads the driver, from the options, and which others make no sense then."""

from __future__ import annotations

from driver_manager import settings
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.policy import Loader
from driver_manager.domain.setting import Values


def loader(values: Values) -> Loader:
    """Who loads the driver. Raises ConfigError where the host does, and another option wants it installed."""
    chosen = Loader(values[settings.DRIVER_LOAD])
    if chosen is Loader.NONE and values[settings.FORCE_REINSTALL]:
        raise ConfigError(
            "FORCE_REINSTALL is set, and with DRIVER_LOAD=none nothing is ever installed",
            "Unset FORCE_REINSTALL, or let the driver's container or the manager load the driver (DRIVER_LOAD).",
        )
    return chosen
