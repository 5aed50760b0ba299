"""Mutants: a promise that is broken by a small patch, and the tests that must notice.

These promises hold between modules or processes, so that no change of one line shows them. Mutants of changed lines are
made by rule (line_mutants.py).
"""

from __future__ import annotations

import re

from tests.assurance.mutants.mutant import Mutant

_MUTANTS = r"""
two-patch-pause: pause, cordon and journal are one patch
core/swap/node.py, by unit/swap/test_executor.py::test_one_reconcile_with_operands_is_five_requests
-                node = ports.cluster.patch_node(lock.state.taking(change), step.resource_version)
+                later = {key: change.annotations[key] for key in change.annotations}
+                first = NodeChange(change.labels, {}, change.unschedulable)
+                node = ports.cluster.patch_node(first, step.resource_version)
+                node = ports.cluster.patch_node(NodeChange(annotations=later), node.resource_version)

journal-after-the-pause: the patch that pauses a label also writes the journal
domain/swap/node_patches.py, by unit/swap/test_plans.py
-        annotations={key: value for key, value in annotations.items() if node.annotations.get(key) != value},
+        annotations={key: value for key, value in annotations.items() if key != profile.keys.journal},

lost-answer-not-fenced: a run that took the node by a patch whose answer was lost stops when another run takes over
core/swap/run.py, by
unit/swap/test_reconcile_properties.py::test_a_run_whose_taking_patch_got_no_answer_does_nothing_more_once_superseded
-            self._context.claim_what_is_ours()

stale-refusal: if another run takes or releases the node during a preflight that fails, the run reads the facts again
core/swap/run.py, by unit/swap/test_observe.py::test_a_run_that_was_overtaken_ends_as_the_second_of_two
-        if is_seen_half_done and _was_taken_since(obs, ports, self._profile):
+        if is_seen_half_done and not ports:

unconditional-restore: a label that another writer edited during the pause stays as edited
domain/pods/labels.py, by unit/swap/test_plans.py
-        if _is_pause_of(original, value, paused_value):
+        if value != original:

value-overflow: a paused value is a valid label value, however long the original is
domain/pods/labels.py, by unit/pods/test_labels.py::test_every_paused_form_is_a_label_value_and_is_recognised
-    return combined if len(combined) <= MAX_LABEL_VALUE_CHARS else paused_value
+    return combined

always-uncordon: an administrator's cordon stays
domain/swap/node_patches.py, by unit/swap/test_plans.py
-    if journal.cordoned and _is_marked(node, profile):
-        annotations[profile.keys.cordon] = None
-        unschedulable = False if node.unschedulable and not _was_set_again(node, journal) else None
+    unschedulable = False if node.unschedulable else None

renewed-cordon-lifted: a cordon that an administrator lifted and set again is not lifted
domain/swap/node_patches.py, by unit/swap/test_plans.py
-    return are_known and is_same_node and journal.cordon_manager != node.cordon_manager
+    return False

release-that-cannot-apply: the patch that lifts a cordon does not fail because of the kubelet's reports
domain/swap/node_patches.py, by
unit/swap/test_node_lock.py::test_a_cordon_on_a_node_with_a_kubelet_is_lifted_after_a_look_and_by_one_patch
-    if change.unschedulable is False and node.has_heartbeat:
-        return ()

released-before-its-services: the host services that a run stopped are started before the node is released
core/swap/node.py, by
unit/swap/test_node_lock.py::test_a_cordon_on_a_node_with_a_kubelet_is_lifted_after_a_look_and_by_one_patch
-if not self._is_confirmed or self._to_reload or not self._started.issuperset(journal.services):
+if not self._is_confirmed or self._to_reload:

failed-test-is-final: if a test in the release patch fails, the Node is read again and the release is retried
adapters/kube/node.py, by unit/adapters/test_kube_node.py::test_a_json_patch_of_which_a_test_fails_is_a_conflict
-*((INVALID,) if isinstance(body, list) else ())
+*()

no-resource-version: a node edited between observation and pause is observed again
core/swap/node.py, by unit/swap/test_executor.py::test_a_node_edited_before_the_pause_is_observed_again
-patch_node(lock.state.taking(change), step.resource_version)
+patch_node(lock.state.taking(change), None)

precondition-not-sent: a patch of the Node carries the resourceVersion, so that the API server refuses a stale one
adapters/kube/objects.py, by unit/adapters/test_kube_node.py::test_a_change_is_one_merge_patch
-        metadata["resourceVersion"] = resource_version
+        pass

no-boot-id-check: a run of an earlier boot is dead, whichever process has its pid now
core/swap/run.py, by unit/swap/test_observe.py::test_a_process_of_an_earlier_boot_is_dead_wherever_we_look_from
-    if not owner.pid or (boot_id and owner.boot_id != boot_id):
+    if not owner.pid:

owner-not-checked: two runs never change a node at the same time
domain/swap/preflight.py, by unit/swap/test_plans.py
-    if journal is None or not is_owned_elsewhere(obs, take_over=take_over):
+    if journal is None or not take_over:

taken-over-node-released: a node that another run took over is left to that run
core/swap/node.py, by unit/swap/test_node_lock.py::test_a_node_that_another_run_took_over_is_left_to_it
-        self.refuse_foreign(node, journal)
-        current
+        current

released-without-a-driver: operands are not restored on a node whose old driver is gone
core/swap/node.py, by unit/swap/test_node_lock.py::test_a_node_whose_old_driver_is_gone_is_held_with_its_journal
-        if not is_loaded:
+        if False:

taken-node-forgotten: a node is released even if the answer to the patch that took it was lost
core/swap/node.py, by unit/swap/test_reconcile_properties.py::test_an_api_server_that_fails_at_any_call_loses_nothing
-                lock.acquired(journal)
-                node = ports.cluster.patch_node(
+                node = ports.cluster.patch_node(

retry-by-name: an eviction never evicts a later pod of the same name
adapters/kube/node.py, by
unit/adapters/test_kube_node.py::test_an_eviction_names_exactly_one_pod_and_leaves_its_grace_alone
-    options = {"preconditions": {"uid": pod.uid}, **({"dryRun": ["All"]} if dry_run else {})}
+    options = {"dryRun": ["All"]} if dry_run else {}

claims-not-unprepared: a run waits for a pod with claims until its devices are released
domain/node.py, by unit/pods/test_workloads.py::test_a_pod_is_waited_for_as_long_as_a_container_of_it_may_run
-(self.deleting and self.have_ended is True and not self.claims)
+(self.deleting and self.have_ended is True)

dra-plugin-first: the DRA plugin leaves after the last claim holder
domain/swap/building.py, by unit/swap/test_plans.py
-    return keys - last, keys & last
+    return keys, frozenset()

unload-before-the-pods-left: no driver is unloaded while an operand pod is there
core/swap/run.py, by unit/swap/test_executor.py::test_one_reconcile_with_operands_is_five_requests
-            return self._pods.do(step, paused_at=self._node.paused_at
+            return not step and self._pods.do(step, paused_at=self._node.paused_at

first-list-trusted: a run also waits for pods that started or were replaced between the list and the pause
core/swap/pods.py, by
unit/swap/test_executor.py
unit/swap/test_observe.py::test_a_pod_that_took_anothers_place_before_the_pause_is_waited_for
-, after=paused_at)
+)

old-list-after-a-wait: after a wait a run lists the pods again
cli/session.py, by unit/swap/test_observe.py::test_only_the_first_look_of_a_run_may_be_a_moment_old
-if is_first else self._session.observe()
+if is_first else self._session.observe(recent=True)

digest-before-verification: the digest of a driver is recorded only after the driver was verified
domain/swap/building.py, by unit/swap/test_plans.py
-        *_firmware_path(situation),
-        LoadModules(
+        *_firmware_path(situation),
+        RecordDigest(paths.state_file, digest, paths.load_record, source),
+        LoadModules(

no-rollback: a driver that does not load is rolled back
core/swap/driver.py, by unit/swap/test_executor.py::test_a_load_that_fails_goes_back_to_the_old_driver_and_says_so
-        previous = step.previous
+        previous = None

old-driver-of-the-node: the old driver is known from the host's record alone
domain/pods/journal_check.py, by
unit/swap/test_hostile_journals.py::test_a_driver_that_only_the_node_names_is_no_trace_of_an_installer
-replace(left.journal, driver=None, record="")
+replace(left.journal, record="")

record-of-a-live-run: the record of a run that may still live is left alone
core/swap/run.py, by unit/swap/test_hostile_journals.py::test_the_record_of_a_run_that_lives_is_left_alone
-process_lives(owner) is False)
+process_lives(owner) is not None)

record-that-no-journal-names: a record on the host is undone even if no journal names it
core/swap/run.py, by unit/swap/test_hostile_journals.py::test_a_record_that_no_journal_names_is_undone_and_removed
-    if host is not None and left:
+    if host is not None and left and found is not None:

host-process-ignored: no pod is disturbed while a process that a run cannot stop has the device
domain/swap/eviction.py, by unit/swap/test_plans.py, unit/swap/test_patience.py
-        return holder.service not in stopped_services(situation)
+        return False

stuck-after-the-pause: no pod is disturbed while an operand that was already stuck has not ended
domain/swap/eviction.py, by unit/swap/test_plans.py
-    if not stuck or STUCK in situation.waited:
+    if stuck or STUCK in situation.waited:

no-wait-after-a-failure: after a failure, a run waits before it disturbs a pod, unless something has changed
domain/swap/planner.py, by unit/swap/test_patience.py::test_the_step_says_until_when_why_and_how_to_skip_it
-    return wait_first(situation, decided)
+    return decided

wait-eats-the-deadline: the wait after a failure does not count towards the run's deadline
core/swap/run.py, by unit/swap/test_patience.py::test_the_wait_is_no_part_of_the_runs_own_time
-            self._deadline = Deadline.after(self._policy.deadline_s, self._ports.clock.monotonic)
-            return
+            return

unseen-owner-is-dead: an owner in a namespace that could not be listed does not count as dead
core/swap/run.py, by
unit/swap/test_observe.py::test_an_owner_in_a_namespace_that_could_not_be_listed_is_not_taken_for_dead
-        if pods.namespace and owner.pod.partition("/")[0] != pods.namespace:
-            return None

one-process-hides-others: a process whose /proc does not answer hides no other process
adapters/process/forked.py, by
unit/adapters/test_forked.py::test_an_item_that_gives_no_answer_is_left_out_and_hides_no_other
-            asked.stuck.append(asked.left.pop(0))
-            return size
+            asked.stuck += asked.left
+            asked.left.clear()
+            return size

tool-by-our-loader: the vendor's tool runs with the loader of its own root
adapters/host/probe.py, by
unit/adapters/test_foreign.py::test_a_tool_is_run_by_the_loader_in_its_root_with_the_libraries_there
-    words = foreign_command(tool, (files.path(root), files.root), folders)
+    words = (str(tool),)

join-on-a-stuck-child: a probe that cannot be killed is never waited for
adapters/process/supervisor.py, by
unit/adapters/test_run.py::test_a_tool_that_survives_kill_is_abandoned_counted_and_never_doubled
hangs for 60 s
-        self._clear(child.group, orphans)
+        os.waitpid(child.group, 0)
+        self._clear(child.group, orphans)

marker-before-withdrawal: the ready marker is withdrawn before the recovery is requested
domain/health/watch.py, by unit/health/test_scenarios.py::test_a_scenario_gives_its_trace
-            if seen.ready:
-                acts.append(MarkChange.WITHDRAW_READY)
-            if seen.may_request and history.failures:
-                acts.append(MarkChange.REQUEST_RECOVERY)
+            if seen.may_request and history.failures:
+                acts.append(MarkChange.REQUEST_RECOVERY)
+            if seen.ready:
+                acts.append(MarkChange.WITHDRAW_READY)

upgrade-marker-replaced: health watch never touches an upgrade marker
domain/health/watch.py, by
unit/health/test_health_states.py::test_a_state_calls_for_marks_and_never_touches_those_of_others
-    return marker.reason == RECOVERY and marker.writer == WRITER
+    return marker.writer == WRITER or True

judged-during-a-reconcile: health-watch does not judge the driver while a reconcile runs
domain/health/watch.py, by
unit/health/test_health_states.py::test_nothing_is_judged_while_the_driver_is_changed_or_not_ready
-    if seen.is_reconciling:
-        return "a reconcile is under way"

grant-without-a-record: a grant on the Node counts only if the host's record has it
domain/reboot/state.py, by unit/reboot/test_reboot_loop.py::test_a_grant_that_is_written_again_and_again_reboots_nothing
-    return recorded is None or recorded == reason
+    return not recorded or recorded == reason

unknown-grant-forgotten: a rebooter that is killed while it withdraws an unrecorded grant leaves no slot taken
core/rebooter.py, by
unit/reboot/test_reboot_properties.py::test_killed_at_any_effect_nothing_stays_taken_for_a_grant_that_the_host_does_not_know
-        if pending is not None and state.record.pending is None:
+        if False:

rebooters-record-overwritten: no process overwrites a record of the rebooter that it has not seen
adapters/host/notes.py, by
unit/adapters/test_reboot_host.py::test_a_record_that_another_process_has_replaced_is_not_overwritten
-if seen is not None and encode_reboot_record
+if seen is not seen and encode_reboot_record

refusal-overruled: a host that refuses to reboot is not rebooted by sysrq
core/rebooter.py, by
unit/reboot/test_reboot_loop.py::test_a_command_that_is_refused_is_given_again_and_never_followed_by_sysrq
-        if answer.is_refused:
+        if False:

slots-without-precondition: two nodes that take a slot at the same time do not both get the last one
adapters/kube/leases.py, by unit/sandbox/test_contract_on_sandbox.py::TestSlotsOnSandbox
-            metadata["resourceVersion"] = version
+            pass

suspended-process-reboots: a process that was suspended does not reboot the host on old facts
core/rebooter.py, by
unit/reboot/test_reboot_properties.py::test_a_process_that_stands_still_at_any_call_does_no_harm_when_it_goes_on
-        return is_fresh and (now.boot_id, now.marker) == (snapshot.boot_id, snapshot.marker)
+        return True

link-followed-on-write: no file is written through a symlink
adapters/host/files.py, by unit/adapters/test_files.py::test_a_link_in_the_files_place_is_replaced_not_followed
-with place(root, path, missing=missing) as where:
+with place(root, path, missing=missing, follow_last=True) as where:

partial-write: a file on the host is complete, or as it was before
adapters/host/files.py, by unit/adapters/test_files.py::test_a_failed_write_leaves_the_old_file_and_no_other
-    with _written_beside(where, text, mode) as temporary:
-        _rename(where, temporary, where.name)
+    _unlink(where, where.name)
+    with os.fdopen(open_in(where, os.O_WRONLY | os.O_CREAT, mode), 'w') as file:
+        file.write(text)
+        os.fsync(file.fileno())

hung-module-is-unloaded: a module whose exit function does not return does not count as unloaded
adapters/host/modules.py, by unit/adapters/test_kmod.py::test_a_module_whose_exit_does_not_return_is_stuck_and_not_gone
-    if not becomes(lambda: not _is_going(folder), deadline.left(), GOING_POLL_S, clock):
+    if False:

reboot-requested-again: a reboot that did not help is not requested again
domain/swap/planner.py, by
unit/swap/test_executor_reboot.py::test_a_reboot_after_which_another_driver_is_loaded_again_is_not_asked_for_again
unit/swap/test_executor_reboot.py::test_a_forced_reinstall_asks_for_one_reboot_and_is_done_after_it
-    if _has_rebooted_for_it(situation):
+    if False:

half-loaded-driver-rebooted: a load at boot that was killed is completed by the next run, without a reboot
domain/swap/planner.py, by
unit/swap/test_executor_reboot.py::test_killed_at_any_effect_the_next_run_ends_like_an_undisturbed_one
-    if is_half_loaded or not
+    if not

devices-of-another-boot-restored: the journal of an earlier boot changes no device
core/swap/node.py, by unit/swap/test_node_lock.py::test_devices_that_a_boot_made_again_are_not_restored_from_the_journal
-if journal.devices and host is not None and journal.boot_id == host.boot_id:
+if journal.devices and host is not None:

sysfs-written-in-process: a write to sysfs that never returns does not block the run
adapters/host/pci.py, by unit/adapters/test_pci_bus.py::test_an_unbind_that_does_not_end_is_left_behind_at_its_deadline
hangs for 60 s
-        answer = lines_within(max(deadline.left(), EFFECT_POLL_S), partial(
+        answer = (lambda write, *told: list(write(*told)))(*(

node-before-marks: the host's markers are changed before the Node is patched
core/health.py, by unit/health/test_scenarios.py::test_the_marks_and_the_report_come_before_the_node
-                self._settle(seen)
+                self._report_to_node()
+                self._settle(seen)

notice-of-each-watch: two health-watch processes for one driver make one Event of its wedge
core/health.py, by unit/health/test_scenarios.py::test_two_watches_of_one_driver_post_one_event
-            after = watch.with_recorded_wedge(after, self._marks.recall(), seen.boot_id)
+            pass

mute-read-under-the-lock: no reconcile waits while the Node is read for a mute
core/health.py, by unit/health/test_scenarios.py::test_a_reconcile_does_not_wait_for_the_mute_of_the_node
-            self._ask_node(result, begun)
-            with self._marks.alone() as seen:
+            with self._marks.alone() as seen:
+                self._ask_node(result, begun)

evidence-after-the-unload: evidence of the old driver is saved before it is unloaded
core/swap/driver.py, by unit/swap/test_executor.py
-                if not removed:
-                    self._keep_evidence(loaded)
+                if removed:
+                    self._keep_evidence(loaded)

window-starts-again: the run after a killed one continues its window
core/swap/run.py, by unit/swap/test_reconcile_window.py::test_the_run_after_one_that_was_killed_goes_on_with_its_window
-log.resumes(before, clock.wall(), clock.monotonic())
+log.disturbs(clock.wall(), clock.monotonic())

evicts-after-the-end: an eviction is not repeated after its run has stopped
adapters/kube/node.py, by unit/adapters/test_kube_node.py::test_no_request_is_repeated_once_the_caller_has_stopped
-        self._clock.end()

end-in-a-patch-of-its-own: the outcome of a run is written in the patch that releases the node
core/swap/node.py, by unit/swap/test_state_writer.py::test_a_replacement_takes_two_patches_which_say_upgrading_and_ready
-        operations += self.state.operations(self.state.node)

state-of-another-run-replaced: a run does not write the state of a node that another run has taken
core/swap/node.py, by unit/swap/test_state_writer.py::test_a_node_that_another_run_took_meanwhile_is_left_alone
-        return self.ending(node, NodeChange()) if is_same else NodeChange()
+        return self.ending(node, NodeChange()) if is_same or node else NodeChange()

hold-forgotten: a node that is held for a driver that does not work stays held until a run succeeds
core/swap/node.py, by
unit/swap/test_state_writer.py::test_a_node_held_for_a_driver_that_does_not_work_stays_so_through_a_run_that_fails_early
-        return found.boot_id == host.boot_id and bool(found.driver.digest) and not host.digest
+        return False

lead-checked-once-a-pass: a controller checks that it leads before every single action
core/fleet/controller.py, by unit/fleet/test_controller.py::test_each_act_asks_whether_it_may_still_be_done
-            if not self._may_act():
-                self._wake(UNSURE_S)
-                return
-            yield act
+            yield act

decided-on-old-facts: nothing is decided on facts that may be out of date
core/fleet/controller.py, by unit/fleet/test_controller.py::test_what_cannot_be_seen_is_not_decided_on
-            elif not self._world.why_blind(rollout.policy):
+            else:

own-write-forgotten: a controller never decides on facts older than its own writes
core/fleet/controller.py, by
unit/fleet/test_controller.py::test_after_its_own_write_it_goes_on_without_waiting_for_the_watch
-            self.world.learn(NODES, item)

conflict-forgotten: after a conflict the next version of the node is read, regardless of what changed
core/fleet/world.py, by unit/fleet/test_world.py::test_what_was_doubted_is_news_with_its_next_version
-        return is_doubted or known.owner != item.owner or not _is_same(known.fact, item.fact)
+        return known.owner != item.owner or not _is_same(known.fact, item.fact)

lease-counted-from-the-answer: a leader's term counts from before the request that renewed it
adapters/kube/leases.py, by
unit/adapters/test_leadership.py::test_a_renewal_counts_from_when_it_was_asked_for_and_not_from_its_answer
-        self._ours, self._renewed_s = understood(_as_record, answer), before
+        self._ours = understood(_as_record, answer)
+        self._renewed_s = (self._clock.monotonic(), self._clock.wall())

lease-taken-early: a Lease is taken only once its record has not changed for a whole term
adapters/kube/leases.py, by unit/adapters/test_leadership.py::test_never_two_may_act_at_once
-        if seen is None or not seen.holder:
-            return True
+        if seen is None or not seen.holder or self._clock.wall() > 0:
+            return True

pod-by-name: exactly the pod that was decided on is deleted
adapters/kube/fleet.py, by unit/adapters/test_kube_fleet.py::test_exactly_the_pod_that_was_meant_is_deleted
-"preconditions": {"uid": uid}}
+"preconditions": {}}

request-to-a-namesake: a request changes only the object that was read, not a later one of the same name
adapters/kube/fleet.py, by unit/adapters/test_kube_fleet.py::test_a_wish_is_for_the_object_that_was_seen
-metadata: dict[str, Any] = {"uid": rollout.uid, **(
+metadata: dict[str, Any] = {**(

fleet-later-pod-deleted: only the driver pod that the Node's record names is deleted, never a later one
domain/fleet/state.py, by unit/fleet/test_decisions.py::test_facts_lead_to_the_decision
-        return pod is not None and record is not None and pod.uid == record.pod and not pod.is_deleting
+        return pod is not None and record is not None and not pod.is_deleting

fleet-twice-for-one-revision: a node that left the revision it was upgraded to is not restarted for it again
domain/fleet/nodes.py, by unit/fleet/test_decisions.py::test_facts_lead_to_the_decision
-    if member.node.wants_retry:
-        return None
-    return _left_out(f"was upgraded
+    return None
+    return _left_out(f"was upgraded

fleet-clocks-compared: a node's reports are ordered by its own clock, however far that is from the controller's
domain/fleet/nodes.py, by unit/fleet/test_decisions.py::test_facts_lead_to_the_decision
-return outcome_s >= record.began_s if record.outcome_s is None else outcome_s != record.outcome_s
+return outcome_s >= record.began_s

fleet-wave-forgotten: a node stays in the wave in which it was started
domain/fleet/waves.py, by unit/fleet/test_decisions.py::test_facts_lead_to_the_decision
-return min(max(record.wave, 0), waves) if record is not None and record.revision == target else 0
+return 0 if record is not None and record.revision == target else 0

fleet-undo-at-once: the target of an undo is recorded before the undo begins
domain/fleet/advance.py, by unit/fleet/test_decisions.py::test_facts_lead_to_the_decision
-    return _decided(met, target, to), ()
+    why = ""
+    version = fleet.daemon_set.resource_version if fleet.daemon_set else ""
+    return _decided(met, target, to), (SetTemplate(to, version, why),)

retry-consumed-too-early: the old pod is deleted before the request for a retry is consumed, so that no request is lost
domain/fleet/waves.py, by unit/fleet/test_decisions.py::test_facts_lead_to_the_decision
-        DeletePod.of(finding.pod),
-        MarkNode(
+        MarkNode(

mark-of-a-dead-run: the cleared mark of a run that has died since then is ignored
domain/fleet/nodes.py, by unit/fleet/test_decisions.py::test_facts_lead_to_the_decision
-(_is_alive(pod) and member.node.cleared_by == pod.uid)
+(member.node.cleared_by == pod.uid)

client-evicted-unrecorded: a client is recorded before its eviction is requested
core/clients.py, by unit/pods/test_clients.py::test_a_client_is_noted_before_its_eviction_is_asked_for
-            record = self._put(record, client, ClientState.ASKED)
+            record = record.with_state(client.uid, ClientState.ASKED)

client-hunted: the clients of a driver are determined once: a pod that replaces one is not restarted
domain/pods/client_record.py, by
unit/pods/test_clients.py::test_a_successor_that_seems_to_run_since_before_the_driver_is_left_alone
-            if pod.uid in self.unknown or not any(selector.matches(pod.labels) for selector in decided)

client-too-early: no client is restarted before the driver is ready
core/health.py, by unit/health/test_scenarios.py::test_a_scenario_gives_its_trace
-if not serving or serving != self._load or
+if not self._load or

root-replaced-in-two-steps: the driver root is complete whenever a run is killed
adapters/host/slots.py, by
unit/adapters/test_host_slots.py::test_killed_anywhere_the_root_is_whole_and_the_next_run_ends_alike
-        exchange(folder, name, folder, other)
-    except
+        os.rename(other, f"{other}.old", src_dir_fd=folder, dst_dir_fd=folder)
+        os.rename(name, other, src_dir_fd=folder, dst_dir_fd=folder)
+        os.rename(f"{other}.old", name, src_dir_fd=folder, dst_dir_fd=folder)
+    except
"""
"""Name and promise, module and tests, and the patch, which removes the lines with `-` where none has `+`."""


def parsed(entry: str) -> Mutant:
    lines = entry.split("\n")
    name, _, breaks = lines[0].partition(": ")
    path, tests = " ".join(line for line in lines[1:] if line[0] not in "-+").split(", by ")
    search, replace = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
    if hangs := re.search(r" hangs for (\d+) s$", tests):
        tests = tests.removesuffix(hangs[0])
    limit_s, search = int(hangs[1]) if hangs else 600, search if replace else f"{search}\n"
    return Mutant(breaks, path, search, replace, tuple(re.split("[, ]+", tests)), limit_s, hangs is not None, name)


MUTANTS = {mutant.name: mutant for mutant in map(parsed, _MUTANTS.strip().split("\n\n"))}
