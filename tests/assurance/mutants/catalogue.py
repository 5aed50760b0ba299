"""Mutants: a promise that is broken by a small patch, and the tests that must notice.

These promises hold between modules or processes, so that no change of one line shows them. Mutants of changed lines are
made by rule (line_mutants.py).
"""

from __future__ import annotations

from dataclasses import replace

from tests.assurance.mutants.mutant import Mutant

_MUTANTS = {
    "two-patch-pause": Mutant(
        "pause, cordon and journal are one patch",
        "core/swap/node.py",
        "                node = ports.cluster.patch_node(lock.state.taking(change), step.resource_version)\n",
        (
            "                later = {key: change.annotations[key] for key in change.annotations}\n"
            "                first = NodeChange(change.labels, {}, change.unschedulable)\n"
            "                node = ports.cluster.patch_node(first, step.resource_version)\n"
            "                node = ports.cluster.patch_node(NodeChange(annotations=later), node.resource_version)\n"
        ),
        ("unit/swap/test_executor.py::test_one_reconcile_with_operands_is_five_requests",),
    ),
    "journal-after-the-pause": Mutant(
        "the patch that pauses a label also writes the journal",
        "domain/swap/node_patches.py",
        "        annotations={key: value for key, value in annotations.items() if node.annotations.get(key) != value},",
        "        annotations={key: value for key, value in annotations.items() if key != profile.keys.journal},",
        ("unit/swap/test_plans.py",),
    ),
    "lost-answer-not-fenced": Mutant(
        "a run that took the node by a patch whose answer was lost stops when another run takes over",
        "core/swap/run.py",
        "            self._context.claim_what_is_ours()\n",
        "",
        (
            "unit/swap/test_reconcile_properties.py::test_a_run_whose_taking_patch_got_no_answer_does_nothing_more_once_superseded",
        ),
    ),
    "stale-refusal": Mutant(
        "if another run takes or releases the node during a preflight that fails, the run reads the facts again",
        "core/swap/run.py",
        "        if is_seen_half_done and _was_taken_since(obs, ports, self._profile):\n",
        "        if is_seen_half_done and not ports:\n",
        ("unit/swap/test_observe.py::test_a_run_that_was_overtaken_ends_as_the_second_of_two",),
    ),
    "unconditional-restore": Mutant(
        "a label that another writer edited during the pause stays as edited",
        "domain/pods/labels.py",
        "        if _is_pause_of(original, value, paused_value):",
        "        if value != original:",
        ("unit/swap/test_plans.py",),
    ),
    "value-overflow": Mutant(
        "a paused value is a valid label value, however long the original is",
        "domain/pods/labels.py",
        "    return combined if len(combined) <= MAX_LABEL_VALUE_CHARS else paused_value",
        "    return combined",
        ("unit/pods/test_labels.py::test_every_paused_form_is_a_label_value_and_is_recognised",),
    ),
    "always-uncordon": Mutant(
        "an administrator's cordon stays",
        "domain/swap/node_patches.py",
        (
            "    if journal.cordoned and _is_marked(node, profile):\n"
            "        annotations[profile.keys.cordon] = None\n"
            "        unschedulable = False if node.unschedulable and not _was_set_anew(node, journal) else None"
        ),
        "    unschedulable = False if node.unschedulable else None",
        ("unit/swap/test_plans.py",),
    ),
    "renewed-cordon-lifted": Mutant(
        "a cordon that an administrator lifted and set again is not lifted",
        "domain/swap/node_patches.py",
        "    return are_known and is_same_node and journal.cordon_manager != node.cordon_manager",
        "    return False",
        ("unit/swap/test_plans.py",),
    ),
    "release-that-cannot-apply": Mutant(
        "on a Node with a kubelet, the patch that lifts a cordon does not fail because of the kubelet's reports",
        "domain/swap/node_patches.py",
        "    if change.unschedulable is False and node.has_heartbeat:\n        return ()\n",
        "",
        (
            "unit/swap/test_node_lock.py::test_a_cordon_on_a_node_with_a_kubelet_is_lifted_after_a_look_and_by_one_patch",
        ),
    ),
    "released-before-its-services": Mutant(
        "the host services that a run stopped are started before the node is released",
        "core/swap/node.py",
        "if not self._is_confirmed or self._to_reload or not self._started.issuperset(journal.services):",
        "if not self._is_confirmed or self._to_reload:",
        (
            "unit/swap/test_node_lock.py::test_a_cordon_on_a_node_with_a_kubelet_is_lifted_after_a_look_and_by_one_patch",
        ),
    ),
    "failed-test-is-final": Mutant(
        "if a test in the release patch fails, the Node is read again and the release is retried",
        "adapters/kube/node.py",
        "*((INVALID,) if isinstance(body, list) else ())",
        "*()",
        ("unit/adapters/test_kube_node.py::test_a_json_patch_of_which_a_test_fails_is_a_conflict",),
    ),
    "no-resource-version": Mutant(
        "a node edited between observation and pause is observed again",
        "core/swap/node.py",
        "patch_node(lock.state.taking(change), step.resource_version)",
        "patch_node(lock.state.taking(change), None)",
        ("unit/swap/test_executor.py::test_a_node_edited_before_the_pause_is_observed_again",),
    ),
    "precondition-not-sent": Mutant(
        "a patch of the Node carries the resourceVersion, so that the API server refuses a stale one",
        "adapters/kube/objects.py",
        '        metadata["resourceVersion"] = resource_version\n',
        "        pass\n",
        ("unit/adapters/test_kube_node.py::test_a_change_is_one_merge_patch",),
    ),
    "no-boot-id-check": Mutant(
        "a run of an earlier boot is dead, whichever process has its pid now",
        "core/swap/run.py",
        "    if not owner.pid or (boot_id and owner.boot_id != boot_id):",
        "    if not owner.pid:",
        ("unit/swap/test_observe.py::test_a_process_of_an_earlier_boot_is_dead_wherever_we_look_from",),
    ),
    "owner-not-checked": Mutant(
        "two runs never change a node at the same time",
        "domain/swap/preflight.py",
        "    if journal is None or not is_owned_elsewhere(obs, take_over=take_over):\n",
        "    if journal is None or not take_over:\n",
        ("unit/swap/test_plans.py",),
    ),
    "taken-over-node-released": Mutant(
        "a node that another run took over is left to that run",
        "core/swap/node.py",
        "        self.refuse_foreign(node, journal)\n        current",
        "        current",
        ("unit/swap/test_node_lock.py::test_a_node_that_another_run_took_over_is_left_to_it",),
    ),
    "released-without-a-driver": Mutant(
        "operands are not restored on a node whose old driver is gone",
        "core/swap/node.py",
        "        if not is_loaded:\n",
        "        if False:\n",
        ("unit/swap/test_node_lock.py::test_a_node_whose_old_driver_is_gone_is_held_with_its_journal",),
    ),
    "taken-node-forgotten": Mutant(
        "a node is released even if the answer to the patch that took it was lost",
        "core/swap/node.py",
        "                lock.acquired(journal)\n                node = ports.cluster.patch_node(",
        "                node = ports.cluster.patch_node(",
        ("unit/swap/test_reconcile_properties.py::test_an_api_server_that_fails_at_any_call_loses_nothing",),
    ),
    "retry-by-name": Mutant(
        "an eviction never evicts a later pod of the same name",
        "adapters/kube/node.py",
        '    options = {"preconditions": {"uid": pod.uid}, **({"dryRun": ["All"]} if dry_run else {})}',
        '    options = {"dryRun": ["All"]} if dry_run else {}',
        ("unit/adapters/test_kube_node.py::test_an_eviction_names_exactly_one_pod_and_leaves_its_grace_alone",),
    ),
    "claims-not-unprepared": Mutant(
        "a run waits for a pod with claims until its devices are released",
        "domain/node.py",
        "(self.deleting and self.have_ended is True and not self.claims)",
        "(self.deleting and self.have_ended is True)",
        ("unit/pods/test_workloads.py::test_a_pod_is_waited_for_as_long_as_a_container_of_it_may_run",),
    ),
    "dra-plugin-first": Mutant(
        "the DRA plugin leaves after the last claim holder",
        "domain/swap/building.py",
        "    return keys - last, keys & last",
        "    return keys, frozenset()",
        ("unit/swap/test_plans.py",),
    ),
    "unload-before-the-pods-left": Mutant(
        "no driver is unloaded while an operand pod is there",
        "core/swap/run.py",
        "            return self._pods.do(step, paused_at=self._node.paused_at",
        "            return not step and self._pods.do(step, paused_at=self._node.paused_at",
        ("unit/swap/test_executor.py::test_one_reconcile_with_operands_is_five_requests",),
    ),
    "first-list-trusted": Mutant(
        "a run also waits for pods that started or were replaced between the list and the pause",
        "core/swap/pods.py",
        ", after=paused_at)",
        ")",
        (
            "unit/swap/test_executor.py",
            "unit/swap/test_observe.py::test_a_pod_that_took_anothers_place_before_the_pause_is_waited_for",
        ),
    ),
    "old-list-after-a-wait": Mutant(
        "after a wait a run lists the pods again",
        "cli/session.py",
        "if is_first else self._session.observe()",
        "if is_first else self._session.observe(recent=True)",
        ("unit/swap/test_observe.py::test_only_the_first_look_of_a_run_may_be_a_moment_old",),
    ),
    "digest-before-verification": Mutant(
        "the digest of a driver is recorded only after the driver was verified",
        "domain/swap/building.py",
        "        *_firmware_path(situation),\n        LoadModules(",
        (
            "        *_firmware_path(situation),\n"
            "        RecordDigest(paths.state_file, digest, paths.load_record, source),\n"
            "        LoadModules("
        ),
        ("unit/swap/test_plans.py",),
    ),
    "no-rollback": Mutant(
        "a driver that does not load is rolled back",
        "core/swap/driver.py",
        "        previous = step.previous\n",
        "        previous = None\n",
        ("unit/swap/test_executor.py::test_a_load_that_fails_goes_back_to_the_old_driver_and_says_so",),
    ),
    "old-driver-of-the-node": Mutant(
        "the old driver is known from the host's record alone",
        "domain/pods/journal_check.py",
        'replace(left.journal, driver=None, record="")',
        'replace(left.journal, record="")',
        ("unit/swap/test_hostile_journals.py::test_a_driver_that_only_the_node_names_is_no_trace_of_an_installer",),
    ),
    "record-of-a-live-run": Mutant(
        "the record of a run that may still live is left alone",
        "core/swap/run.py",
        "process_lives(owner) is False)",
        "process_lives(owner) is not None)",
        ("unit/swap/test_hostile_journals.py::test_the_record_of_a_run_that_lives_is_left_alone",),
    ),
    "record-that-no-journal-names": Mutant(
        "a record on the host is undone even if no journal names it",
        "core/swap/run.py",
        "    if host is not None and left:\n",
        "    if host is not None and left and found is not None:\n",
        ("unit/swap/test_hostile_journals.py::test_a_record_that_no_journal_names_is_undone_and_removed",),
    ),
    "host-process-ignored": Mutant(
        "no pod is disturbed while a process that a run cannot stop has the device",
        "domain/swap/eviction.py",
        "        return holder.service not in stopped_services(situation)\n",
        "        return False\n",
        ("unit/swap/test_plans.py", "unit/swap/test_patience.py"),
    ),
    "stuck-after-the-pause": Mutant(
        "no pod is disturbed while an operand that was already stuck has not ended",
        "domain/swap/eviction.py",
        "    if not stuck or STUCK in situation.waited:\n",
        "    if stuck or STUCK in situation.waited:\n",
        ("unit/swap/test_plans.py",),
    ),
    "no-wait-after-a-failure": Mutant(
        "after a failure, a run waits before it disturbs a pod, unless something has changed",
        "domain/swap/planner.py",
        "    return wait_first(situation, decided)\n",
        "    return decided\n",
        ("unit/swap/test_patience.py::test_the_step_says_until_when_why_and_how_to_skip_it",),
    ),
    "wait-eats-the-deadline": Mutant(
        "the wait after a failure does not count towards the run's deadline",
        "core/swap/run.py",
        (
            "            self._deadline = Deadline.after(self._policy.deadline_s, self._ports.clock.monotonic)\n"
            "            return\n"
        ),
        "            return\n",
        ("unit/swap/test_patience.py::test_the_wait_is_no_part_of_the_runs_own_time",),
    ),
    "unseen-owner-is-dead": Mutant(
        "an owner in a namespace that could not be listed does not count as dead",
        "core/swap/run.py",
        ('        if pods.namespace and owner.pod.partition("/")[0] != pods.namespace:\n            return None\n'),
        "",
        ("unit/swap/test_observe.py::test_an_owner_in_a_namespace_that_could_not_be_listed_is_not_taken_for_dead",),
    ),
    "one-process-hides-others": Mutant(
        "a process whose /proc does not answer hides no other process",
        "adapters/process/forked.py",
        "            asked.stuck.append(asked.left.pop(0))\n            return size\n",
        "            asked.stuck += asked.left\n            asked.left.clear()\n            return size\n",
        ("unit/adapters/test_forked.py::test_an_item_that_gives_no_answer_is_left_out_and_hides_no_other",),
    ),
    "tool-by-our-loader": Mutant(
        "the vendor's tool runs with the loader of its own root",
        "adapters/host/probe.py",
        "    words = foreign_command(tool, (files.path(root), files.root), folders)\n",
        "    words = (str(tool),)\n",
        ("unit/adapters/test_foreign.py::test_a_tool_is_run_by_the_loader_in_its_root_with_the_libraries_there",),
    ),
    "join-on-a-stuck-child": Mutant(
        "a probe that cannot be killed is never waited for",
        "adapters/process/supervisor.py",
        "        self._clear(child.group, orphans)\n",
        "        os.waitpid(child.group, 0)\n        self._clear(child.group, orphans)\n",
        ("unit/adapters/test_run.py::test_a_tool_that_survives_kill_is_abandoned_counted_and_never_doubled",),
        limit_s=60,
        hangs=True,
    ),
    "marker-before-withdrawal": Mutant(
        "the ready marker is withdrawn before the recovery is requested",
        "domain/health/watch.py",
        (
            "            if seen.ready:\n"
            "                acts.append(MarkChange.WITHDRAW_READY)\n"
            "            if seen.may_request and history.failures:\n"
            "                acts.append(MarkChange.REQUEST_RECOVERY)\n"
        ),
        (
            "            if seen.may_request and history.failures:\n"
            "                acts.append(MarkChange.REQUEST_RECOVERY)\n"
            "            if seen.ready:\n"
            "                acts.append(MarkChange.WITHDRAW_READY)\n"
        ),
        ("unit/health/test_scenarios.py::test_a_scenario_gives_its_trace",),
    ),
    "upgrade-marker-replaced": Mutant(
        "health watch never touches an upgrade marker",
        "domain/health/watch.py",
        "    return marker.reason == RECOVERY and marker.writer == WRITER",
        "    return marker.writer == WRITER or True",
        ("unit/health/test_health_states.py::test_a_state_calls_for_marks_and_never_touches_those_of_others",),
    ),
    "judged-during-a-reconcile": Mutant(
        "health-watch does not judge the driver while a reconcile runs",
        "domain/health/watch.py",
        '    if seen.is_reconciling:\n        return "a reconcile is under way"\n',
        "",
        ("unit/health/test_health_states.py::test_nothing_is_judged_while_the_driver_is_changed_or_not_ready",),
    ),
    "grant-without-a-record": Mutant(
        "a grant on the Node counts only if the host's record has it",
        "domain/reboot/state.py",
        "    return recorded is None or recorded == reason\n",
        "    return not recorded or recorded == reason\n",
        ("unit/reboot/test_reboot_loop.py::test_a_grant_that_is_written_again_and_again_reboots_nothing",),
    ),
    "unknown-grant-forgotten": Mutant(
        "a rebooter that is killed while it withdraws an unrecorded grant leaves no slot taken",
        "core/rebooter.py",
        "        if pending is not None and state.record.pending is None:\n",
        "        if False:\n",
        (
            "unit/reboot/test_reboot_properties.py::test_killed_at_any_effect_nothing_stays_taken_for_a_grant_that_the_host_does_not_know",
        ),
    ),
    "rebooters-record-overwritten": Mutant(
        "no process overwrites a record of the rebooter that it has not seen",
        "adapters/host/notes.py",
        "if seen is not None and encode_reboot_record",
        "if seen is not seen and encode_reboot_record",
        ("unit/adapters/test_reboot_host.py::test_a_record_that_another_process_has_replaced_is_not_overwritten",),
    ),
    "refusal-overruled": Mutant(
        "a host that refuses to reboot is not rebooted by sysrq",
        "core/rebooter.py",
        "        if answer.is_refused:\n",
        "        if False:\n",
        ("unit/reboot/test_reboot_loop.py::test_a_command_that_is_refused_is_given_again_and_never_followed_by_sysrq",),
    ),
    "slots-without-precondition": Mutant(
        "two nodes that take a slot at the same time do not both get the last one",
        "adapters/kube/leases.py",
        '            metadata["resourceVersion"] = version\n',
        "            pass\n",
        ("unit/sandbox/test_contract_on_sandbox.py::TestSlotsOnSandbox",),
    ),
    "suspended-process-reboots": Mutant(
        "a process that was suspended does not reboot the host on old facts",
        "core/rebooter.py",
        "        return is_fresh and (now.boot_id, now.marker) == (snapshot.boot_id, snapshot.marker)",
        "        return True",
        (
            "unit/reboot/test_reboot_properties.py::test_a_process_that_stands_still_at_any_call_does_no_harm_when_it_goes_on",
        ),
    ),
    "link-followed-on-write": Mutant(
        "no file is written through a symlink",
        "adapters/host/files.py",
        "with place(root, path, missing=missing) as where:",
        "with place(root, path, missing=missing, follow_last=True) as where:",
        ("unit/adapters/test_files.py::test_a_link_in_the_files_place_is_replaced_not_followed",),
    ),
    "partial-write": Mutant(
        "a file on the host is complete, or as it was before",
        "adapters/host/files.py",
        ("    with _written_beside(where, text, mode) as temporary:\n        _rename(where, temporary, where.name)\n"),
        (
            "    _unlink(where, where.name)\n"
            "    with os.fdopen(open_in(where, os.O_WRONLY | os.O_CREAT, mode), 'w') as file:\n"
            "        file.write(text)\n"
            "        os.fsync(file.fileno())\n"
        ),
        ("unit/adapters/test_files.py::test_a_failed_write_leaves_the_old_file_and_no_other",),
    ),
    "hung-module-is-unloaded": Mutant(
        "a module whose exit function does not return does not count as unloaded",
        "adapters/host/modules.py",
        "    if not becomes(lambda: not _is_going(folder), deadline.left(), GOING_POLL_S, clock):",
        "    if False:",
        ("unit/adapters/test_kmod.py::test_a_module_whose_exit_does_not_return_is_stuck_and_not_gone",),
    ),
    "reboot-requested-again": Mutant(
        "a reboot that did not help is not requested again",
        "domain/swap/planner.py",
        "    if _has_rebooted_for_it(situation):",
        "    if False:",
        (
            "unit/swap/test_executor_reboot.py::test_a_reboot_after_which_another_driver_is_loaded_again_is_not_asked_for_again",
            "unit/swap/test_executor_reboot.py::test_a_forced_reinstall_asks_for_one_reboot_and_is_done_after_it",
        ),
    ),
    "half-loaded-driver-rebooted": Mutant(
        "a load at boot that was killed is completed by the next run, without a reboot",
        "domain/swap/planner.py",
        "    if is_half_loaded or not",
        "    if not",
        ("unit/swap/test_executor_reboot.py::test_killed_at_any_effect_the_next_run_ends_like_an_undisturbed_one",),
    ),
    "devices-of-another-boot-restored": Mutant(
        "the journal of an earlier boot changes no device",
        "core/swap/node.py",
        "if journal.devices and host is not None and journal.boot_id == host.boot_id:",
        "if journal.devices and host is not None:",
        ("unit/swap/test_node_lock.py::test_devices_that_a_boot_made_again_are_not_restored_from_the_journal",),
    ),
    "sysfs-written-in-process": Mutant(
        "a write to sysfs that never returns does not block the run",
        "adapters/host/pci.py",
        "        answer = lines_within(max(deadline.left(), EFFECT_POLL_S), partial(",
        "        answer = (lambda write, *told: list(write(*told)))(*(",
        ("unit/adapters/test_pci_bus.py::test_an_unbind_that_does_not_end_is_left_behind_at_its_deadline",),
        limit_s=60,
        hangs=True,
    ),
    "node-before-marks": Mutant(
        "the host's markers are changed before the Node is patched",
        "core/health.py",
        "                self._settle(seen)\n",
        "                self._report_to_node()\n                self._settle(seen)\n",
        ("unit/health/test_scenarios.py::test_the_marks_and_the_report_come_before_the_node",),
    ),
    "notice-of-each-watch": Mutant(
        "two health-watch processes for one driver make one Event of its wedge",
        "core/health.py",
        "            after = watch.with_recorded_wedge(after, self._marks.recall(), seen.boot_id)\n",
        "            pass\n",
        ("unit/health/test_scenarios.py::test_two_watches_of_one_driver_post_one_event",),
    ),
    "mute-read-under-the-lock": Mutant(
        "no reconcile waits while the Node is read for a mute",
        "core/health.py",
        "            self._ask_node(result, begun)\n            with self._marks.alone() as seen:\n",
        "            with self._marks.alone() as seen:\n                self._ask_node(result, begun)\n",
        ("unit/health/test_scenarios.py::test_a_reconcile_does_not_wait_for_the_mute_of_the_node",),
    ),
    "evidence-after-the-unload": Mutant(
        "evidence of the old driver is saved before it is unloaded",
        "core/swap/driver.py",
        "                if not removed:\n                    self._keep_evidence(loaded)\n",
        "                if removed:\n                    self._keep_evidence(loaded)\n",
        ("unit/swap/test_executor.py",),
    ),
    "window-starts-again": Mutant(
        "the run after a killed one continues its window",
        "core/swap/run.py",
        "log.resumes(before, clock.wall(), clock.monotonic())",
        "log.disturbs(clock.wall(), clock.monotonic())",
        ("unit/swap/test_reconcile_window.py::test_the_run_after_one_that_was_killed_goes_on_with_its_window",),
    ),
    "evicts-after-the-end": Mutant(
        "an eviction is not repeated after its run has stopped",
        "adapters/kube/node.py",
        "        self._clock.end()\n",
        "",
        ("unit/adapters/test_kube_node.py::test_nobody_repeats_a_request_once_the_caller_has_stopped",),
    ),
    "end-in-a-patch-of-its-own": Mutant(
        "the outcome of a run is written in the patch that releases the node",
        "core/swap/node.py",
        "        operations += self.state.operations(self.state.node)\n",
        "",
        ("unit/swap/test_state_writer.py::test_a_replacement_takes_two_patches_which_say_upgrading_and_ready",),
    ),
    "state-of-another-run-replaced": Mutant(
        "a run does not write the state of a node that another run has taken",
        "core/swap/node.py",
        "        return self.ending(node, NodeChange()) if is_same else NodeChange()",
        "        return self.ending(node, NodeChange()) if is_same or node else NodeChange()",
        ("unit/swap/test_state_writer.py::test_a_node_that_another_run_took_meanwhile_is_left_alone",),
    ),
    "hold-forgotten": Mutant(
        "a node that is held for a driver that does not work stays held until a run succeeds",
        "core/swap/node.py",
        "        return found.boot_id == host.boot_id and bool(found.driver.digest) and not host.digest\n",
        "        return False\n",
        (
            "unit/swap/test_state_writer.py::test_a_node_held_for_a_driver_that_does_not_work_stays_so_through_a_run_that_fails_early",
        ),
    ),
    "lead-checked-once-a-pass": Mutant(
        "a controller checks that it leads before every single action",
        "core/fleet/controller.py",
        (
            "            if not self._may_act():\n"
            "                self._wake(UNSURE_S)\n"
            "                return\n"
            "            yield act"
        ),
        "            yield act",
        ("unit/fleet/test_controller.py::test_each_act_asks_whether_it_may_still_be_done",),
    ),
    "decided-on-old-facts": Mutant(
        "nothing is decided on facts that may be out of date",
        "core/fleet/controller.py",
        "            elif not self._world.why_blind(rollout.policy):\n",
        "            else:\n",
        ("unit/fleet/test_controller.py::test_what_cannot_be_seen_is_not_decided_on",),
    ),
    "own-write-forgotten": Mutant(
        "a controller never decides on facts older than its own writes",
        "core/fleet/controller.py",
        "            self.world.learn(NODES, item)\n",
        "",
        ("unit/fleet/test_controller.py::test_after_its_own_write_it_goes_on_without_waiting_for_the_watch",),
    ),
    "conflict-forgotten": Mutant(
        "after a conflict the next version of the node is read, regardless of what changed",
        "core/fleet/world.py",
        "        return is_doubted or known.owner != item.owner or not _is_same(known.fact, item.fact)\n",
        "        return known.owner != item.owner or not _is_same(known.fact, item.fact)\n",
        ("unit/fleet/test_world.py::test_what_was_doubted_is_news_with_its_next_version",),
    ),
    "lease-counted-from-the-answer": Mutant(
        "a leader's term counts from before the request that renewed it",
        "adapters/kube/leases.py",
        "        self._ours, self._renewed_s = understood(_as_record, answer), before\n",
        (
            "        self._ours = understood(_as_record, answer)\n"
            "        self._renewed_s = (self._clock.monotonic(), self._clock.wall())\n"
        ),
        ("unit/adapters/test_leadership.py::test_a_renewal_counts_from_when_it_was_asked_for_and_not_from_its_answer",),
    ),
    "lease-taken-early": Mutant(
        "a Lease is taken only once its record has not changed for a whole term",
        "adapters/kube/leases.py",
        "        if seen is None or not seen.holder:\n            return True\n",
        "        if seen is None or not seen.holder or self._clock.wall() > 0:\n            return True\n",
        ("unit/adapters/test_leadership.py::test_never_two_may_act_at_once",),
    ),
    "pod-by-name": Mutant(
        "exactly the pod that was decided on is deleted",
        "adapters/kube/fleet.py",
        '"preconditions": {"uid": uid}}',
        '"preconditions": {}}',
        ("unit/adapters/test_kube_fleet.py::test_exactly_the_pod_that_was_meant_is_deleted",),
    ),
    "request-to-a-namesake": Mutant(
        "a request changes only the object that was read, not a later one of the same name",
        "adapters/kube/fleet.py",
        'metadata: dict[str, Any] = {"uid": rollout.uid, **(',
        "metadata: dict[str, Any] = {**(",
        ("unit/adapters/test_kube_fleet.py::test_a_wish_is_for_the_object_that_was_seen",),
    ),
    "fleet-later-pod-deleted": Mutant(
        "only the driver pod that the Node's record names is deleted, never a later one",
        "domain/fleet/state.py",
        "        return pod is not None and record is not None and pod.uid == record.pod and not pod.is_deleting",
        "        return pod is not None and record is not None and not pod.is_deleting",
        ("unit/fleet/test_decisions.py::test_facts_lead_to_the_decision",),
    ),
    "fleet-twice-for-one-revision": Mutant(
        "a node that left the revision it was upgraded to is not restarted for it again",
        "domain/fleet/nodes.py",
        '    if member.node.wants_retry:\n        return None\n    return _left_out(f"was upgraded',
        '    return None\n    return _left_out(f"was upgraded',
        ("unit/fleet/test_decisions.py::test_facts_lead_to_the_decision",),
    ),
    "fleet-clocks-compared": Mutant(
        "a node's reports are ordered by its own clock, however far that is from the controller's",
        "domain/fleet/nodes.py",
        "return outcome_s >= record.began_s if record.outcome_s is None else outcome_s != record.outcome_s",
        "return outcome_s >= record.began_s",
        ("unit/fleet/test_decisions.py::test_facts_lead_to_the_decision",),
    ),
    "fleet-wave-forgotten": Mutant(
        "a node stays in the wave in which it was started",
        "domain/fleet/waves.py",
        "return min(max(record.wave, 0), waves) if record is not None and record.revision == target else 0",
        "return 0 if record is not None and record.revision == target else 0",
        ("unit/fleet/test_decisions.py::test_facts_lead_to_the_decision",),
    ),
    "fleet-undo-at-once": Mutant(
        "the target of an undo is recorded before the undo begins",
        "domain/fleet/advance.py",
        "    return _decided(met, target, to), ()\n",
        (
            '    why = ""\n'
            '    version = fleet.daemon_set.resource_version if fleet.daemon_set else ""\n'
            "    return _decided(met, target, to), (SetTemplate(to, version, why),)\n"
        ),
        ("unit/fleet/test_decisions.py::test_facts_lead_to_the_decision",),
    ),
    "retry-consumed-too-early": Mutant(
        "the old pod is deleted before the request for a retry is consumed, so that no request is lost",
        "domain/fleet/waves.py",
        "        DeletePod.of(finding.pod),\n        MarkNode(",
        "        MarkNode(",
        ("unit/fleet/test_decisions.py::test_facts_lead_to_the_decision",),
    ),
    "mark-of-a-dead-run": Mutant(
        "the cleared mark of a run that has died since then is ignored",
        "domain/fleet/nodes.py",
        "(_is_alive(pod) and member.node.cleared_by == pod.uid)",
        "(member.node.cleared_by == pod.uid)",
        ("unit/fleet/test_decisions.py::test_facts_lead_to_the_decision",),
    ),
    "client-evicted-unrecorded": Mutant(
        "a client is recorded before its eviction is requested",
        "core/clients.py",
        "            record = self._put(record, client, ClientState.ASKED)\n",
        "            record = record.with_state(client.uid, ClientState.ASKED)\n",
        ("unit/pods/test_clients.py::test_a_client_is_noted_before_its_eviction_is_asked_for",),
    ),
    "client-hunted": Mutant(
        "the clients of a driver are determined once: a pod that replaces one is not restarted",
        "domain/pods/client_record.py",
        "            if pod.uid in self.unknown or not any(selector.matches(pod.labels) for selector in decided)\n",
        "",
        ("unit/pods/test_clients.py::test_a_successor_that_seems_to_run_since_before_the_driver_is_left_alone",),
    ),
    "client-too-early": Mutant(
        "no client is restarted before the driver is ready",
        "core/health.py",
        "if not serving or serving != self._load or",
        "if not self._load or",
        ("unit/health/test_scenarios.py::test_a_scenario_gives_its_trace",),
    ),
    "root-replaced-in-two-steps": Mutant(
        "the driver root is complete whenever a run is killed",
        "adapters/host/slots.py",
        "        exchange(folder, name, folder, other)\n    except",
        (
            '        os.rename(other, f"{other}.old", src_dir_fd=folder, dst_dir_fd=folder)\n'
            "        os.rename(name, other, src_dir_fd=folder, dst_dir_fd=folder)\n"
            '        os.rename(f"{other}.old", name, src_dir_fd=folder, dst_dir_fd=folder)\n'
            "    except"
        ),
        ("unit/adapters/test_host_slots.py::test_killed_anywhere_the_root_is_whole_and_the_next_run_ends_alike",),
    ),
}
MUTANTS = {name: replace(mutant, name=name) for name, mutant in _MUTANTS.items()}
