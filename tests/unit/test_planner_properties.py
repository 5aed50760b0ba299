"""Any combination of facts and wishes leads to a sound plan or to an error with a remedy."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from driver_manager.domain.errors import ManagerError
from driver_manager.domain.model import Loader, Observation, Policy, RebootMarker
from driver_manager.domain.planner import plan
from driver_manager.domain.profile import Profile
from driver_manager.domain.steps import GiveBack, LoadModules, Plan, StandDown, TakeNode, UnloadModules
from tests.fakes.builders import (
    LABELS,
    NEW_DIGEST,
    OLD_DIGEST,
    PROFILES,
    ROOT_MOUNT,
    SOMEBODY,
    driver_pod,
    host,
    journal,
    modules,
    node,
    observation,
    source,
)
from tests.unit.test_planner import ASCEND_LOADED, READY, STATE, TAKEN


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    """Any combination of facts that the table looks at."""
    facts = host(
        modules=draw(st.sampled_from([{}, modules(), ASCEND_LOADED["modules"]])),
        digest=draw(st.sampled_from([None, OLD_DIGEST, NEW_DIGEST])),
        digest_problem=draw(st.sampled_from(["", "garbage"])),
        root_mounts=draw(st.sampled_from([(), (ROOT_MOUNT,)])),
        artifacts=draw(st.sampled_from([(), (READY, STATE)])),
        host_driver=draw(st.sampled_from(["", "/lib/m.ko"])),
        source=draw(st.sampled_from([None, source(), source(problem="no", remedy="build it")])),
        previous_source=draw(st.sampled_from([None, source("/opt/old", "1.0")])),
        marker=draw(st.sampled_from([None, RebootMarker("upgrade", "boot-0"), RebootMarker("upgrade", "boot-1")])),
    )
    return observation(
        host=facts,
        node=node(draw(st.sampled_from([LABELS, TAKEN, {}])), unschedulable=draw(st.booleans())),
        journal=draw(st.sampled_from([None, journal(), journal(owner=SOMEBODY)])),
        owner_alive=draw(st.booleans()),
        digest=draw(st.sampled_from(["", NEW_DIGEST])),
        own_pod=draw(st.sampled_from([None, driver_pod(), driver_pod(main_started=True)])),
    )


POLICIES = st.builds(
    Policy,
    loader=st.sampled_from(Loader),
    force_reinstall=st.booleans(),
    no_wait=st.booleans(),
    take_over=st.booleans(),
)


def plan_or_error(obs: Observation, profile: Profile, policy: Policy) -> Plan | ManagerError:
    try:
        return plan(obs, profile, policy)
    except ManagerError as error:
        return error


@settings(max_examples=300)
@given(observations(), st.sampled_from(sorted(PROFILES)), POLICIES)
def test_any_plan_is_sound(obs: Observation, name: str, policy: Policy) -> None:
    found = plan_or_error(obs, PROFILES[name], policy)
    if isinstance(found, ManagerError):
        assert found.remedy
        return
    kinds = [type(step) for step in found.steps]
    assert found.reason
    assert json.loads(json.dumps(found.to_json()))["decision"] == found.decision.value
    assert found.to_text().count("\n") >= len(found.steps) + 1
    if name == "ascend":
        assert UnloadModules not in kinds, "this driver must never be unloaded"
    if TakeNode in kinds:
        assert kinds[0] is TakeNode, "an effect before the journal"
        assert GiveBack in kinds, "taken and never given back"
    if GiveBack in kinds:
        assert set(kinds[kinds.index(GiveBack) + 1 :]) <= {StandDown}, "work goes on after giving back"
    if UnloadModules in kinds and TakeNode in kinds:
        assert kinds.index(UnloadModules) > kinds.index(TakeNode)
    if LoadModules in kinds:
        assert policy.loader is Loader.MANAGER
