"""What one decision of a reconcile is made of, as one value.

Pure, like all of `domain`. Made once before a plan; the plan's rows and the steps' handlers take it whole.
"""

from __future__ import annotations

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.host import Host
from driver_manager.domain.observation import Observation
from driver_manager.domain.policy import Policy
from driver_manager.domain.profile import Profile
from driver_manager.domain.swap.transition import for_this_change


class Situation(Frozen):
    """The facts, what is wanted, and how far the run is. `host` is that of `obs`: there is none without.

    `profile` has the strategy that this change of versions takes. `waited`: what was waited for in this run already,
    before the node was taken.
    """

    obs: Observation
    host: Host
    profile: Profile
    policy: Policy
    waited: frozenset[str] = frozenset()

    @classmethod
    def of(cls, obs: Observation, profile: Profile, policy: Policy, waited: frozenset[str] = frozenset()) -> Situation:
        """The situation of the node that was observed. Raises ConfigError away from it."""
        if obs.host is None:
            raise ConfigError(
                f"this is not node {obs.node.name}: its machine id and boot id differ from this host's",
                "Run it on the node (init container, or `kubectl debug node/NAME` with the host at /host), "
                "or set --node-name to the name of this node.",
            )
        return cls(obs, obs.host, for_this_change(obs.host, profile, policy), policy, waited)
