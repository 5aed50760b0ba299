"""Mutants of what is promised for clients of a new driver: who they are, once each, nobody forgotten."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

RESTART = "unit/pods/test_clients.py::"
CLIENTS = "unit/pods/test_clients.py::"

CLIENT_MUTANTS = (
    Mutant(
        "client-evicted-unrecorded",
        "a client is recorded before its eviction is requested",
        "core/clients.py",
        "            book.put(client.uid, ClientState.ASKED)\n",
        "",
        (RESTART + "test_a_client_is_noted_before_its_eviction_is_asked_for",),
    ),
    Mutant(
        "client-hunted",
        "the clients of a driver are determined once: a pod that replaces one is not restarted",
        "domain/pods/client_record.py",
        "            if pod.uid in self.unknown or not any(selector.matches(pod.labels) for selector in decided)\n",
        "",
        (RESTART + "test_a_successor_that_seems_to_run_since_before_the_driver_is_left_alone",),
    ),
    Mutant(
        "client-cut-off",
        "a run also completes what a killed run began with a client that is no longer on the node",
        "core/clients.py",
        "self.turn() if record is not None and record.was_cut_off(pods) else ClientTurn()",
        "ClientTurn()",
        (RESTART + "test_a_run_finishes_what_was_cut_off_though_the_client_is_gone_and_has_no_successor",),
    ),
    Mutant(
        "client-waited-for",
        "a run does not wait for clients that it does not select",
        "domain/pods/client_record.py",
        "any(client.uid not in there for client in self.left)",
        "bool(self.left or there)",
        (RESTART + "test_a_run_does_not_wait_for_a_client_that_it_does_not_select",),
    ),
    Mutant(
        "client-of-a-user",
        "a user's pod is never restarted for a new driver",
        "domain/pods/workloads.py",
        "    if pod.claims or any(name.startswith(rules.profile.resource_prefixes) for name in pod.resources):\n"
        "        return False\n",
        "",
        (CLIENTS + "test_a_users_pod_is_never_one_whatever_its_labels",),
    ),
    Mutant(
        "client-too-early",
        "no client is restarted before the driver is ready",
        "core/health.py",
        "bool(serving) and serving == self._load and",
        "bool(self._load) and",
        ("unit/health/test_scenarios.py::test_a_scenario_gives_its_trace",),
    ),
    Mutant(
        "client-opens-first",
        "a replaced client that opens the device before the unload is also evicted",
        "core/swap/driver.py",
        "            if faster:\n                self._evict(faster)\n",
        "",
        ("unit/swap/test_reconcile_workloads.py::test_a_successor_that_is_faster_is_evicted_too",),
    ),
    Mutant(
        "client-unrehearsed",
        "no pod is disturbed if the disruption budget of a client refuses its eviction",
        "core/swap/run.py",
        "for pod, why in rehearsal.refused if pod.uid in uids]",
        "for pod, why in rehearsal.refused if not uids]",
        ("unit/swap/test_reconcile_workloads.py::test_a_budget_that_would_refuse_the_client_disturbs_nobody",),
    ),
    Mutant(
        "client-of-another-selector",
        "clients that only health-watch was configured for are also restarted",
        "domain/pods/client_record.py",
        "return self.has_looked and all(selector.text in self.selectors for selector in rules.selectors)",
        "return self.has_looked",
        (RESTART + "test_a_watch_that_knows_of_more_clients_than_the_run_restarts_those_too_and_nobody_twice",),
    ),
    Mutant(
        "generation-moves",
        "a generation that continues keeps the time at which it became ready",
        "domain/node_state.py",
        "earlier.digest or seen.digest, earlier.ready_s)",
        "earlier.digest or seen.digest, now_s)",
        ("unit/domain/test_node_state.py::test_a_generation_that_is_seen_again_stays_as_it_is",),
    ),
)
