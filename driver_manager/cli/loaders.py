"""Who loads the driver, from the options, and which others make no sense then."""

from __future__ import annotations

from driver_manager import settings
from driver_manager.domain import kmm
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.kmm import KmmModule
from driver_manager.domain.policy import Loader
from driver_manager.domain.setting import Values

_AGAINST_KMM = {
    settings.FORCE_REINSTALL: "KMM loads only a version that it has not loaded",
    settings.SAFE_LOAD: "the operator cordons the node, and on a cordoned node KMM unloads the driver at once",
    settings.ENABLE_AUTO_DRAIN: "a drain needs a cordon, and on a cordoned node KMM unloads the driver at once",
}


def kmm_module(values: Values) -> KmmModule | None:
    """The Module that KMM is to load, None where something else loads. Raises ConfigError for options against it."""
    if values[settings.DRIVER_LOAD] != Loader.KMM.value:
        return None
    for option, why in _AGAINST_KMM.items():
        if values[option]:
            raise ConfigError(
                f"{option.env} cannot be used with DRIVER_LOAD=kmm: {why}", f"Unset {option.env} ({option.flag})."
            )
    return kmm.parse(values[settings.KMM_MODULE], values[settings.KMM_VERSION])


def loader(values: Values) -> Loader:
    """Who loads the driver. Raises ConfigError where the host does, and another option wants it installed."""
    chosen = Loader(values[settings.DRIVER_LOAD])
    if chosen is Loader.NONE and values[settings.FORCE_REINSTALL]:
        raise ConfigError(
            "FORCE_REINSTALL is set, and with DRIVER_LOAD=none nothing is ever installed",
            "Unset FORCE_REINSTALL, or let the driver's container or the manager load the driver (DRIVER_LOAD).",
        )
    return chosen
