"""`python -m driver_manager`."""

from driver_manager.cli.start import entry

entry()
