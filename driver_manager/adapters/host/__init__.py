"""The host: files, modules, mounts, devices, services, the probe and the reboot."""
