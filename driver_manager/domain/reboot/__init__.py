"""What the rebooter decides, and what it keeps for after the reboot. Pure."""
