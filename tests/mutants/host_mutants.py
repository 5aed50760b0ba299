"""Mutants of what is promised for health watch, markers, reboots, and paths on the host."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PROPERTIES = "unit/reboot/test_reboot_properties.py::"

HOST_MUTANTS = (
    Mutant(
        "join-on-a-stuck-child",
        "a probe that cannot be killed is never waited for",
        "adapters/process/supervisor.py",
        "        self._clear(child.group)\n",
        "        os.waitpid(child.group, 0)\n        self._clear(child.group)\n",
        ("unit/adapters/test_supervisor.py::test_a_tool_that_survives_kill_is_abandoned_counted_and_never_doubled",),
        limit_s=10,
    ),
    Mutant(
        "stuck-child-doubled",
        "at most one probe that cannot be killed is outstanding",
        "adapters/process/supervisor.py",
        "        if stuck is not None:\n            raise StillStuckError(stuck.pid)\n",
        "",
        ("unit/adapters/test_supervisor.py::test_a_tool_that_survives_kill_is_abandoned_counted_and_never_doubled",),
    ),
    Mutant(
        "marker-before-withdrawal",
        "the ready marker goes before the recovery is asked for",
        "domain/health/machine.py",
        "            if seen.ready:\n"
        "                acts.append(MarkChange.WITHDRAW_READY)\n"
        "            if seen.may_request and history.failures:\n"
        "                acts.append(MarkChange.REQUEST_RECOVERY)\n",
        "            if seen.may_request and history.failures:\n"
        "                acts.append(MarkChange.REQUEST_RECOVERY)\n"
        "            if seen.ready:\n"
        "                acts.append(MarkChange.WITHDRAW_READY)\n",
        ("unit/health/test_health_loop.py",),
    ),
    Mutant(
        "unknown-is-a-failure",
        "an unknown sample does not count towards a wedge",
        "domain/health/machine.py",
        "    if finding is Finding.UNKNOWN:\n        return after\n",
        "",
        ("unit/health/test_machine.py::test_samples_in_a_row_lead_to_a_state",),
    ),
    Mutant(
        "unknown-clears",
        "an unknown sample does not clear a wedge",
        "domain/health/machine.py",
        "        Finding.UNKNOWN: HealthState.WEDGED,",
        "        Finding.UNKNOWN: HealthState.HEALTHY,",
        ("unit/health/test_machine.py::test_samples_in_a_row_lead_to_a_state",),
    ),
    Mutant(
        "wedged-a-failure-early",
        "three failures in a row are a wedge, and not two",
        "domain/health/machine.py",
        "            return Finding.LAST_BAD if history.failures + 1 >= threshold else Finding.BAD",
        "            return Finding.LAST_BAD if history.failures + 2 >= threshold else Finding.BAD",
        ("unit/health/test_health_loop.py::test_a_wedge_is_declared_at_the_third_failure_and_not_before",),
    ),
    Mutant(
        "upgrade-marker-replaced",
        "health watch never touches an upgrade marker",
        "domain/health/machine.py",
        "    return marker.reason == RECOVERY and marker.writer == WRITER",
        "    return marker.writer == WRITER or True",
        ("unit/health/test_machine.py::test_a_state_calls_for_marks_and_never_touches_those_of_others",),
    ),
    Mutant(
        "judged-during-a-reconcile",
        "nothing is judged while a reconcile is at work",
        "domain/health/machine.py",
        '    if seen.is_reconciling:\n        return "a reconcile is under way"\n',
        "",
        ("unit/health/test_machine.py::test_nothing_is_judged_while_the_driver_is_changed_or_not_ready",),
    ),
    Mutant(
        "other-boot-marker-acted-on",
        "a marker of another boot is cleared and never acted on",
        "domain/reboot/snapshot.py",
        '    return boot not in ("", snapshot.boot_id)',
        "    return False",
        ("unit/reboot/test_reboot_loop.py::test_a_stale_marker_is_cleared_and_never_acted_on",),
    ),
    Mutant(
        "foreign-marker-acted-on",
        "a marker of another node reboots nothing",
        "domain/reboot/state.py",
        "        if marker is None or self.is_stale or is_foreign(marker, self.policy.node):",
        "        if marker is None or self.is_stale:",
        ("unit/reboot/test_reboot_loop.py::test_what_is_no_marker_of_ours_reboots_nothing_and_is_left_alone",),
    ),
    Mutant(
        "cut-marker-acted-on",
        "a marker that was cut short reboots nothing",
        "domain/markers.py",
        '_LEGACY = re.compile(r"(?!\\s*[{\\[\\"])[^',
        '_LEGACY = re.compile(r"[^',
        ("unit/domain/test_markers.py::test_a_marker_that_was_cut_short_is_not_taken_for_an_older_operators",),
    ),
    Mutant(
        "refusal-overruled",
        "a host that refuses to reboot is not rebooted by sysrq",
        "core/reboot/loop.py",
        "        if answer.is_refused:\n",
        "        if False:\n",
        ("unit/reboot/test_reboot_loop.py::test_a_command_that_is_refused_is_given_again_and_never_followed_by_sysrq",),
    ),
    Mutant(
        "way-in-not-tried",
        "no approval is consumed on a host that cannot be told to reboot",
        "core/reboot/loop.py",
        "        return (no_way_in, *found) if no_way_in else found\n",
        "        return found\n",
        ("unit/reboot/test_reboot_loop.py::test_a_host_that_cannot_be_entered_keeps_its_approval_and_no_slot",),
    ),
    Mutant(
        "approval-not-consumed",
        "an approval is good for one reboot",
        "domain/reboot/patches.py",
        "        notes[keys.approve_reboot] = None\n",
        "        pass\n",
        ("unit/reboot/test_reboot_loop.py::test_an_approval_set_in_advance_is_good_for_one_reboot",),
    ),
    Mutant(
        "no-approval-needed",
        "nothing reboots without an approval",
        "domain/reboot/decision.py",
        "    _approval,\n    _uptime,",
        "    _uptime,",
        ("unit/reboot/test_reboot_loop.py::test_without_an_approval_it_waits_and_holds_nothing",),
    ),
    Mutant(
        "young-host-rebooted",
        "a host that is up for less than the minimum is not rebooted",
        "domain/reboot/decision.py",
        "    _uptime,\n    _attempts,",
        "    _attempts,",
        ("unit/reboot/test_reboot_loop.py::test_a_host_that_is_not_up_for_long_waits",),
    ),
    Mutant(
        "endless-attempts",
        "a node is not rebooted more often than the cap",
        "domain/reboot/decision.py",
        "    _attempts,\n    _window,",
        "    _window,",
        ("unit/reboot/test_reboot_loop.py::test_after_the_capped_attempts_it_escalates_once_and_reboots_no_more",),
    ),
    Mutant(
        "no-room-needed",
        "no more nodes reboot at once than allowed",
        "domain/reboot/slots.py",
        "        return Slots((*others, me)) if is_in or len(others) < limit else None",
        "        return Slots((*others, me))",
        ("unit/reboot/test_slots.py::test_who_is_in_stays_in_with_its_new_boot_though_all_slots_are_taken",),
    ),
    Mutant(
        "slot-by-name",
        "a node of the same name does not inherit a slot",
        "domain/reboot/slots.py",
        "        return next((holder for holder in self.holders if holder.uid == uid), None)",
        "        return self.holders[0] if self.holders else None",
        ("unit/reboot/test_slots.py::test_a_node_of_the_same_name_and_another_uid_holds_nothing",),
    ),
    Mutant(
        "slot-freed-on-not-ready",
        "a node that is not Ready keeps its slot",
        "domain/reboot/decision.py",
        "    if node is None or node.is_ready is not True:",
        "    if node is None:",
        ("unit/reboot/test_decision.py::test_a_state_has_its_decision_and_its_reason",),
    ),
    Mutant(
        "slots-without-precondition",
        "two nodes that ask at once do not both get the last slot",
        "adapters/kube/leases.py",
        'encode(slots)}, "resourceVersion": version}',
        "encode(slots)}}",
        ("unit/sandbox/test_contract_on_sandbox.py::TestSlotsOnSandbox",),
    ),
    Mutant(
        "suspended-process-reboots",
        "a process that was suspended does not reboot on what it knew before",
        "core/reboot/loop.py",
        "        return is_fresh and (now.boot_id, now.marker) == (snapshot.boot_id, snapshot.marker)",
        "        return True",
        (PROPERTIES + "test_a_process_that_stands_still_at_any_call_does_no_harm_when_it_goes_on",),
    ),
    Mutant(
        "link-followed-on-write",
        "no file is written through a symlink",
        "adapters/host/files.py",
        "with place(root, path, missing=missing) as where:",
        "with place(root, path, missing=missing, follow_last=True) as where:",
        ("unit/adapters/test_files.py::test_a_link_in_the_files_place_is_replaced_not_followed",),
    ),
    Mutant(
        "link-leads-out",
        "no path on the host leads out of the host's root",
        "adapters/host/files.py",
        '            if target.startswith("/"):\n                done = []\n',
        '            if target.startswith("/"):\n                return Path(target)\n',
        ("unit/adapters/test_files.py::test_no_path_leads_out_of_the_host",),
    ),
    Mutant(
        "torn-write",
        "a file on the host is whole or as it was",
        "adapters/host/files.py",
        "    temporary = _written_beside(where, text, mode)\n    try:\n        _rename(where, temporary, where.name)\n",
        "    temporary = where.name\n"
        "    try:\n"
        "        _unlink(where, temporary)\n"
        "        with os.fdopen(open_in(where, os.O_WRONLY | os.O_CREAT, mode), 'w') as file:\n"
        "            file.write(text)\n"
        "            os.fsync(file.fileno())\n",
        ("unit/adapters/test_files.py::test_a_failed_write_leaves_the_old_file_and_no_other",),
    ),
)
