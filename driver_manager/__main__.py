"""`python -m driver_manager`."""

from driver_manager.cli.main import entry

entry()
