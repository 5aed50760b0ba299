"""Mutants of what is promised for labels, cordon, journal, pods and the driver."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

NODE_MUTANTS = (
    Mutant(
        "two-patch-pause",
        "pause, cordon and journal are one patch",
        "core/swap/executor.py",
        "            self._paused_at = "
        "self._ports.cluster.patch_node(step.change, step.resource_version).resource_version",
        "            later = {key: step.change.annotations[key] for key in step.change.annotations}\n"
        "            first = NodeChange(step.change.labels, {}, step.change.unschedulable)\n"
        "            taken = self._ports.cluster.patch_node(first, step.resource_version)\n"
        "            self._ports.cluster.patch_node(NodeChange(annotations=later), taken.resource_version)\n"
        "            self._paused_at = taken.resource_version",
        ("unit/swap/test_executor.py::test_one_reconcile_with_operands_is_six_requests",),
    ),
    Mutant(
        "journal-after-the-pause",
        "the journal is on the node before a label is paused",
        "domain/swap/node_patches.py",
        "        annotations={key: value for key, value in annotations.items() if node.annotations.get(key) != value},",
        "        annotations={key: value for key, value in annotations.items() if key != profile.keys.journal},",
        ("unit/swap/test_node_patches.py::test_pause_cordon_and_journal_are_one_patch",),
    ),
    Mutant(
        "unconditional-restore",
        "a label that somebody edited during the pause stays as edited",
        "domain/pods/labels.py",
        "        if key in labels and _is_pause_of(original, labels[key], paused_value)",
        "        if key in labels and labels[key] != original",
        ("unit/swap/test_node_patches.py::test_a_label_edited_during_the_pause_is_left_alone",),
    ),
    Mutant(
        "label-made-anew",
        "no label is created that is not there",
        "domain/pods/labels.py",
        "        if key in labels and _is_pause_of(original, labels[key], paused_value)",
        "        if key not in labels or _is_pause_of(original, labels[key], paused_value)",
        ("unit/swap/test_node_patches.py::test_a_label_deleted_during_the_pause_is_not_made_again",),
    ),
    Mutant(
        "value-overflow",
        "a paused value is a valid label value, however long the original is",
        "domain/pods/labels.py",
        "    return combined if len(combined) <= MAX_LABEL_VALUE_CHARS else paused_value",
        "    return combined",
        ("unit/pods/test_labels.py::test_every_paused_form_is_a_label_value_and_is_recognised",),
    ),
    Mutant(
        "false-is-paused-too",
        "what is switched off is left alone",
        "domain/pods/labels.py",
        '    return value not in (None, "", "false")',
        '    return value not in (None, "")',
        ("unit/pods/test_labels.py::test_false_empty_and_absent_are_left_alone",),
    ),
    Mutant(
        "journal-not-believed",
        "a custom value that did not fit comes back from the journal",
        "domain/pods/labels.py",
        "            found[key] = known if ours and known is not None else decoded(value, paused_value)",
        "            found[key] = decoded(value, paused_value)",
        ("unit/pods/test_labels.py::test_the_journal_explains_a_paused_value_that_did_not_fit",),
    ),
    Mutant(
        "driver-label-paused",
        "the driver's own label is never paused",
        "domain/profile.py",
        "if key.startswith(self.prefix) and key != self.driver_key)",
        "if key.startswith(self.prefix))",
        ("unit/swap/test_node_patches.py::test_the_drivers_own_label_and_foreign_labels_are_never_pausable",),
    ),
    Mutant(
        "always-uncordon",
        "an administrator's cordon stays",
        "domain/swap/node_patches.py",
        "    if journal.cordoned and profile.keys.cordon in node.annotations:\n"
        "        annotations[profile.keys.cordon] = None\n"
        "        unschedulable = False if node.unschedulable and not _was_set_anew(node, journal) else None",
        "    unschedulable = False if node.unschedulable else None",
        ("unit/swap/test_node_patches.py::test_a_cordon_that_is_not_marked_or_not_journaled_stays",),
    ),
    Mutant(
        "renewed-cordon-lifted",
        "a cordon that an administrator lifted and set again is theirs",
        "domain/swap/node_patches.py",
        "    return is_told and is_same_node and journal.cordon_manager != node.cordon_manager",
        "    return False",
        (
            "unit/swap/test_node_patches.py::test_a_cordon_that_somebody_set_anew_meanwhile_is_theirs_where_the_server_tells",
        ),
    ),
    Mutant(
        "no-resource-version",
        "a node edited between observation and pause is observed again",
        "core/swap/executor.py",
        "patch_node(step.change, step.resource_version)",
        "patch_node(step.change, None)",
        ("unit/swap/test_executor.py::test_a_node_edited_before_the_pause_is_observed_again",),
    ),
    Mutant(
        "precondition-not-sent",
        "a stale patch is refused by the API server",
        "adapters/kube/cluster.py",
        '            metadata["resourceVersion"] = resource_version\n',
        "            pass\n",
        ("unit/adapters/test_kube_adapter.py::test_a_change_is_one_merge_patch",),
    ),
    Mutant(
        "no-boot-id-check",
        "a run of an earlier boot is dead, whatever process has its number now",
        "core/swap/observe.py",
        "    if not owner.pid or (boot_id and owner.boot_id != boot_id):",
        "    if not owner.pid:",
        ("unit/swap/test_observe.py::test_a_process_of_an_earlier_boot_is_dead_wherever_we_look_from",),
    ),
    Mutant(
        "owner-not-asked",
        "two runs never interleave",
        "domain/swap/planner.py",
        "    if journal is None or take_over or obs.owner_alive is False or journal.owner == obs.me:\n        return\n",
        "    return\n",
        ("unit/swap/test_planner_refusals.py",),
    ),
    Mutant(
        "taken-over-node-given-back",
        "a node that another run took over is left to it",
        "core/swap/settling.py",
        "        self.refuse_foreign(node, journal)\n        is_same",
        "        is_same",
        ("unit/swap/test_settling.py::test_a_node_that_another_run_took_over_is_left_to_it",),
    ),
    Mutant(
        "never-hold",
        "operands do not come back to a node whose old driver is gone",
        "core/swap/settling.py",
        "        return self._is_driver_unusable or not has_root(loaded, self._profile.modules)",
        "        return False",
        ("unit/swap/test_settling.py::test_a_node_whose_old_driver_is_gone_is_held_with_its_journal",),
    ),
    Mutant(
        "interrupted-giving-back",
        "SIGTERM does not interrupt the giving back",
        "core/swap/settling.py",
        "        with self._clock.shielded():\n            if hurry:",
        "        if True:\n            if hurry:",
        ("unit/swap/test_settling.py::test_giving_back_after_a_failure_is_not_interrupted_by_sigterm",),
    ),
    Mutant(
        "taken-before-it-is-noted",
        "a patch whose answer is lost is given back",
        "core/swap/executor.py",
        "        self._settler.took(step.journal)\n"
        "        with self._fence.taking(step.journal.owner):\n"
        "            self._paused_at = self._ports.cluster."
        "patch_node(step.change, step.resource_version).resource_version\n",
        "        with self._fence.taking(step.journal.owner):\n"
        "            self._paused_at = self._ports.cluster."
        "patch_node(step.change, step.resource_version).resource_version\n"
        "        self._settler.took(step.journal)\n",
        ("unit/swap/test_reconcile_properties.py::test_an_api_server_that_fails_at_any_call_loses_nothing",),
    ),
    Mutant(
        "retry-by-name",
        "a pod of the same name is never evicted in place of the one that was meant",
        "adapters/kube/cluster.py",
        '        options = {"preconditions": {"uid": pod.uid}, **({"dryRun": ["All"]} if dry_run else {})}',
        '        options = {"dryRun": ["All"]} if dry_run else {}',
        ("unit/adapters/test_kube_workloads.py::test_an_eviction_names_exactly_one_pod_and_leaves_its_grace_alone",),
    ),
    Mutant(
        "evicts-without-consent",
        "users' pods are evicted only where that was asked for",
        "domain/pods/workloads.py",
        "    if is_given or judged.action is PodAction.WAIT or judged.remedy == USE_LABEL:",
        "    if True:",
        ("unit/pods/test_workloads.py",),
    ),
    Mutant(
        "empty-dir-lost",
        "no emptyDir data is lost without consent",
        "domain/pods/workloads.py",
        "    if pod.has_empty_dir and not rules.deletes_empty_dirs:",
        "    if False:",
        ("unit/pods/test_workloads.py",),
    ),
    Mutant(
        "unloaded-driver-evicts",
        "with no driver loaded nobody is evicted or waited for",
        "domain/swap/planner.py",
        "    taken = _taken(obs, profile, policy, stale, cordon=False) if owns else ()",
        "    taken = _taken(obs, profile, policy, pausable_keys(obs.node, profile), cordon=False) if owns else ()",
        ("unit/swap/test_planner.py::test_only_pods_bound_to_a_stale_root_are_bounced_when_nothing_is_loaded",),
    ),
    Mutant(
        "dra-plugin-first",
        "the DRA plugin leaves after the last claim holder",
        "domain/swap/planner.py",
        "    return keys - last, (keys & last) - paused_keys(obs.node, profile)",
        "    return keys, frozenset()",
        ("unit/swap/test_planner_workloads.py::test_the_dra_plugin_is_paused_only_after_the_claim_holders_have_left",),
    ),
    Mutant(
        "unload-before-the-pods-left",
        "no driver is unloaded while an operand pod is there",
        "core/swap/executor.py",
        "        return self._departures.of_operands(step, paused_at=self._paused_at, replaces=self._replaces)",
        "        return False",
        ("unit/swap/test_executor.py::test_one_reconcile_with_operands_is_six_requests",),
    ),
    Mutant(
        "first-list-believed",
        "a pod that came, or took another one's place, between list and pause is waited for",
        "core/swap/pod_removal.py",
        ", after=paused_at)",
        ")",
        (
            "unit/swap/test_executor_modules.py",
            "unit/pods/test_recent_pods.py::test_a_pod_that_took_anothers_place_before_the_pause_is_waited_for",
        ),
    ),
    Mutant(
        "recent-list-after-a-wait",
        "after a wait the pods are listed as they are now",
        "cli/wiring.py",
        "if first else self.observe()",
        "if first else self.observe(recent=True)",
        ("unit/pods/test_recent_pods.py::test_only_the_first_look_of_a_run_may_be_a_moment_old",),
    ),
    Mutant(
        "recent-list-for-owners",
        "whether a journal's owner lives is asked of the pods as they are now",
        "cli/wiring.py",
        "        if recent and self.profile.keys.journal not in node.annotations:",
        "        if recent:",
        ("unit/pods/test_recent_pods.py::test_the_owner_of_a_journal_is_looked_for_among_the_pods_as_they_are_now",),
    ),
    Mutant(
        "unload-for-reboot-strategy",
        "a driver that must not leave a running kernel is never unloaded",
        "domain/swap/planner.py",
        "    if profile.strategy is Strategy.REBOOT:\n        return plan_reboot_driver",
        "    if False:\n        return plan_reboot_driver",
        (
            "unit/swap/test_planner_reboot.py::test_a_driver_of_strategy_reboot_is_never_unloaded_but_a_reboot_requested",
        ),
    ),
    Mutant(
        "digest-before-the-proof",
        "the digest is recorded only of a driver that was verified",
        "domain/swap/loading.py",
        "    return [\n        LoadModules(",
        "    return [\n        RecordDigest(paths.state_file, obs.digest, paths.load_record, host.source),\n"
        "        LoadModules(",
        ("unit/swap/test_planner.py::test_the_full_path_with_a_manager_loads_records_and_knows_the_way_back",),
    ),
    Mutant(
        "equal-digest-is-current",
        "an equal digest with no module loaded is not a current driver",
        "domain/swap/planner.py",
        "    if not is_loaded(host, profile):\n        return _first_install",
        "    if not is_loaded(host, profile) and host.digest != obs.digest:\n        return _first_install",
        ("unit/swap/test_planner.py::test_an_equal_digest_with_no_module_loaded_is_not_current",),
    ),
    Mutant(
        "no-rollback",
        "a driver that does not load is rolled back",
        "core/swap/executor.py",
        "        previous = step.previous\n",
        "        previous = None\n",
        ("unit/swap/test_executor.py::test_a_load_that_fails_goes_back_to_the_old_driver_and_says_so",),
    ),
    Mutant(
        "no-jitter",
        "nodes that were told the same Retry-After do not come back together",
        "domain/backoff.py",
        "    return min(LAST_S, LEAST_S * doubled) + asked_s + random * window_s",
        "    return max(asked_s, min(LAST_S, LEAST_S * doubled) + random * min(LAST_S, window_s))",
        ("unit/adapters/test_retry_storm.py::test_the_servers_wish_is_a_floor_and_the_pauses_grow_up_to_a_bound",),
    ),
)
