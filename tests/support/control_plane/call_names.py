"""Owns the names of the calls that a run's gate knows, for those who must not import the product."""

API = ("node", "pods", "claims", "watch_pods", "watch_node", "evict", "patch_node", "patch_node_where", "post_event")
EFFECTS = ("unload", "load", "reload", "unmount", "remove", "write_text", "stop_service", "start_service")
LOG = ("step",)
FLEET = ("patch_node", "delete_pod", "create_pod", "set_template", "patch_status", "post_event")
