"""The command line: a failure is what happened and what to do, with an exit code; vendors' commands stand for ours."""

from __future__ import annotations

import json
import re
import string
from pathlib import Path

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some

from driver_manager import profiles
from driver_manager.adapters.report.log import LogForm
from driver_manager.cli.main import COMMANDS, PREFLIGHT, RECONCILE, cli, warn_of_unheeded
from driver_manager.cli.options import document
from driver_manager.domain.errors import EXIT_MEANINGS, ExitCode
from tests.support.fakes.schemas import conforms
from tests.support.fakes.typed import Prompt

LOOPS = ("health-watch", "rebooter")  # they print nothing but their log
APART = ("sandbox", "completion", "rollout", "stage", "profile", "upgrade", "collect", *LOOPS)
NODE_COMMANDS = [name for name in COMMANDS if name not in APART]
"""Those that ask the API server and print."""

JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False, allow_infinity=False) | some.text(),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
)


@pytest.fixture(autouse=True)
def _no_files(_bare: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No kubeconfig, and no termination log."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TERMINATION_LOG", str(tmp_path / "termination-log"))


DEADLINE, SELECTS = "reconcile-driver-state --reconcile-deadline", "--drain-pod-selector-label"


def errors(captured: str) -> list[str]:
    """The messages of the log: JSON lines of a command of pods, text without a clock of one that people type."""
    lines = captured.splitlines()
    return [json.loads(one)["message"] if one[0] == "{" else one.removeprefix("error: ") for one in lines]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("no-such-command", "No such command 'no-such-command'"),
        ("stauts", "No such command 'stauts'. Did you mean 'status'?"),
        ("rollout histroy", "No such command 'histroy'. Did you mean 'history'?"),
        ("profile shema", "No such command 'shema'. Did you mean 'schema'?"),
        ("undo", "No such command 'undo'. Did you mean 'rollout undo'?"),
        ("status --kubeconfg x", "No such option '--kubeconfg'. Did you mean '--kubeconfig'?"),
        ("rollout undo --namespce n", "No such option '--namespce'. Did you mean '--namespace'?"),
        ("status --log-format text", "--log-format is not an option of driver-manager status"),
        ("holders --sys-root=/x", "--sys-root is not an option of driver-manager holders"),
        ("reconcile-driver-state --pod-name x", "--pod-name is not an option of driver-manager reconcile-"),
        ("--no-such-option", "No such option"),
        ("plan --no-such-option", "No such option"),
        ("plan extra", "unexpected extra argument"),
        ("reconcile-driver-state --reconcile-deadline", "requires an argument"),
        (f"{DEADLINE} soon", "'soon' is not a duration such as 90, 30s, 5m or 1h30m"),
        (f"{DEADLINE} -5m", "'-5m' is not a duration"),
        (f"{DEADLINE} 721h", "longer than 30 days"),
        ("plan --driver-load magic", "'magic' is not one of 'container', 'manager'"),
        ("status -o xml", "'xml' is not one of 'text', 'json', 'yaml'"),
        ("reconcile-driver-state --log-level loud", "'loud' is not one of"),
        ("plan --host-root /", "the name of the node is not set"),
        ("plan --node-name 'Not A Node'", "'Not A Node' is not the name of a node"),
        ("plan --node-name n --profile intel", "there is no profile 'intel'"),
        ("plan --node-name n --profile-file /absent.toml", "profile file /absent.toml cannot be read"),
        (f"reconcile-driver-state {SELECTS} 'app in web'", "DRAIN_POD_SELECTOR_LABEL is not a label selector: "),
        ("reconcile-driver-state --wait-for-completion-selector a=b,", "WAIT_FOR_COMPLETION_SELECTOR is not a label s"),
        (f"reconcile-vfio-state {SELECTS} ,", "DRAIN_POD_SELECTOR_LABEL is not a label selector"),
        (f"preflight {SELECTS} =x", "unable to parse requirement: =x"),
        (f"reconcile-driver-state {SELECTS} 'a>1'", "unable to parse requirement: a>1"),
        (f"reconcile-driver-state --dry-run {SELECTS} !", "unable to parse requirement: !"),
        ("reconcile-driver-state --drain-timeout-seconds 'for ever'", "'for ever' is not a duration"),
        ("plan --node-name n --kubeconfig /absent", "to the cluster with /absent: no such file"),
        ("sandbox no-such-scenario", "there is no scenario 'no-such-scenario'"),
        ("sandbox upgrade --all", "a scenario and --all cannot be used together"),
    ],
)
def test_a_usage_error_is_two_lines_and_exit_code_two(prompt: Prompt, line: str, expected: str) -> None:
    code, out, err = prompt(line)
    what, remedy = errors(err)
    assert (code, out, expected in what, "\n" in what) == (ExitCode.USAGE, "", True, False), what
    assert remedy.startswith("what to do: ")


def test_a_mistyped_scenario_gets_the_one_that_is_near_and_no_command_the_help(prompt: Prompt) -> None:
    assert errors(prompt("sandbox wedge-to-rebot").err) == [
        "there is no scenario 'wedge-to-rebot'",
        "what to do: Did you mean 'wedge-to-reboot'? See `driver-manager sandbox --list`.",
    ]
    assert "reconcile-driver-state" in prompt.errors("")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        *((f"{command} -o json --node-name n --kubeconfig /absent", "/absent") for command in NODE_COMMANDS),
        ("upgrade n -o json --kubeconfig /absent", "/absent"),
        ("status -o json --bogus", "No such option"),
        ("reconcile-driver-state -ojson --reconcile-deadline soon", "'soon' is not a duration"),
        ("restore --output=json extra", "unexpected extra argument"),
        ("holders --output json --bogus", "No such option"),
    ],
)
def test_with_output_for_programs_an_error_is_in_that_form_too(prompt: Prompt, line: str, expected: str) -> None:
    code, out, err = prompt(line)
    body = conforms("failure", out)
    assert (code, body["exitCode"], set(body)) == (2, 2, {"schemaVersion", "error", "remedy", "exitCode"})
    assert expected in body["error"]
    assert errors(err) == [body["error"], f"what to do: {body['remedy']}"]
    assert yaml.safe_load(prompt(line.replace("json", "yaml")).out) == body


@given(JSON)
def test_yaml_and_json_are_the_same_document_of_printable_ascii(body: object) -> None:
    found = {form: document(form, body) for form in ("json", "yaml")}
    assert yaml.safe_load(found["yaml"]) == json.loads(found["json"])
    assert set("".join(found.values())) <= {*string.printable}


@pytest.mark.parametrize("text", ["5e7", "1e+5", "-1.5E3", ".5e1", "0o17", "08", "1_0e3", "no", "12", "1.0", "~", ""])
def test_text_that_reads_as_something_else_is_quoted_in_yaml(text: str) -> None:
    assert document("yaml", {"a": text}) in (f'a: "{text}"', f"a: '{text}'")


TYPED, OF_PODS = r"error: .*\nwhat to do: .*\n", r"\{.*\}\n\{.*\}\n"
WITH_CLOCK = r"[\d:.]{12} error: .*\n[\d:.]{12} error: what to do: .*\n"


@pytest.mark.parametrize(
    ("line", "wanted", "form"),
    [
        *((line, "auto", TYPED) for line in ("plan", "rollout status", "rollout contrller", "staus")),
        *((line, "auto", OF_PODS) for line in ("rebooter", "rollout controller", "uninstall_driver")),
        ("health-watch", "text", WITH_CLOCK),
        ("plan", "json", OF_PODS),
    ],
)
def test_only_commands_of_pods_log_json_and_a_clock(
    prompt: Prompt, monkeypatch: pytest.MonkeyPatch, line: str, wanted: str, form: str
) -> None:
    monkeypatch.setenv("LOG_FORMAT", wanted)
    code, out, err = prompt(f"{line} --bogus")
    assert (code, out, re.fullmatch(form, err) is not None) == (ExitCode.USAGE, "", True), err


def test_the_last_line_goes_to_the_termination_log(prompt: Prompt, tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    prompt("plan --node-name Bad")
    assert not log.exists()
    log.touch()
    prompt("plan --node-name Bad")
    assert re.match("exit 2: 'Bad' is not the name of a node.*NODE_NAME", log.read_text(), re.DOTALL)


NOWHERE = "--node-name n --kubeconfig /absent"
NOT_READ = r"no option reads ENABLE_NPU_POD_EVICTON \(did you mean ENABLE_NPU_POD_EVICTION\?\)"


@pytest.mark.parametrize("name", ["NODE_NAME", "KUBECONFIG", "DRIVER_LOAD", "RECONCILE_DEADLINE", "FORCE_REINSTALL"])
def test_an_empty_variable_counts_as_unset(prompt: Prompt, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "")
    code, _, err = prompt("plan --host-root /")
    assert (code, "the name of the node is not set" in errors(err)[0]) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("line", "variable", "expected"),
    [
        ("plan", "NODE_NAME", "'!' is not the name of a node.*"),
        ("plan --node-name Flag", "NODE_NAME", "'Flag' is not the name of a node.*"),
        (RECONCILE, "RECONCILE_DEADLINE", r".*'--reconcile-deadline' \(RECONCILE_DEADLINE\): '!' is not.*"),
        (RECONCILE, "WAIT_FOR_COMPLETION_TIMEOUT", "Invalid value for WAIT_FOR_COMPLETION_TIMEOUT: '!' is not.*"),
        (RECONCILE, "ENABLE_GPU_POD_EVICTION", r".*\(ENABLE_NPU_\w+ or ENABLE_GPU_POD_EVICTION\): '!' is neither.*"),
        (f"plan {NOWHERE}", "ENABLE_NPU_POD_EVICTON", NOT_READ),
        (f"{RECONCILE} --dry-run {NOWHERE}", "ENABLE_NPU_POD_EVICTON", NOT_READ),
    ],
)
def test_a_bad_variable_is_named_with_its_option_unless_a_flag_goes_before_it(
    prompt: Prompt, monkeypatch: pytest.MonkeyPatch, line: str, variable: str, expected: str
) -> None:
    monkeypatch.setenv(variable, "!")
    code, _, err = prompt(line)
    assert (code, re.fullmatch(expected, errors(err)[0]) is not None) == (ExitCode.USAGE, True), err


def test_every_command_that_prints_for_machines_takes_the_same_output_option_and_prints_text_without_it() -> None:
    found = {
        name: (option.opts, option.type.choices, option.default, option.help)
        for name in COMMANDS
        if (command := cli.get_command(click.Context(cli), name)) is not None
        for option in command.params
        if isinstance(option, click.Option) and isinstance(option.type, click.Choice) and option.name == "output"
    }
    assert {"status", "plan", "preflight", "holders", "restore", "reconcile-driver-state", "health-watch"} <= set(found)
    same = (["-o", "--output"], ("text", "json", "yaml"), "text", "Output format.")
    assert {name: form for name, form in found.items() if form != same} == {}


def test_the_help_explains_every_exit_code_and_the_scenarios_are_listed(prompt: Prompt) -> None:
    code, out, _ = prompt("--help")
    text = " ".join(out.split())
    assert (code, set(EXIT_MEANINGS)) == (ExitCode.DONE, set(ExitCode))
    assert all(f"{code.value} {meaning}" in text for code, meaning in EXIT_MEANINGS.items())
    assert all(command in text for command in COMMANDS)
    code, out, _ = prompt("sandbox --list -o json")
    assert (code, "upgrade" in [row["name"] for row in json.loads(out)]) == (ExitCode.DONE, True)


NVIDIA = {"uninstall_driver": RECONCILE, "preflight_check": PREFLIGHT}


def command(name: str) -> click.Command | None:
    return cli.get_command(click.Context(cli), name)


def profile_of(name: str, *argv: str) -> str:
    """The value of --profile that the command sees."""
    found = command(name)
    assert found is not None
    return str(found.make_context(name, list(argv)).params["profile"])


def test_nvidias_names_stand_for_our_commands_on_its_profile_unless_one_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, ours in NVIDIA.items():
        found, meant = command(name), command(ours)
        assert found is not None
        assert meant is not None
        assert (found.name, found.callback) == (name, meant.callback)
        assert (profile_of(name), profile_of(ours)) == ("nvidia", profiles.AUTO)
    assert profile_of("uninstall_driver", "--profile", "auto") == "auto"
    monkeypatch.setenv("DRIVER_PROFILE", "rebellions")
    assert profile_of("uninstall_driver") == "rebellions"


def test_no_name_has_two_meanings() -> None:
    each = [profile.commands for profile in profiles.builtin().values()]
    names = [name for known in each for name in (*known.reconcile, *known.preflight)]
    assert command("uninstall-driver") is None
    assert (len({*names, *COMMANDS}), set(names)) == (len(names) + len(COMMANDS), set(NVIDIA))
    assert {RECONCILE, PREFLIGHT} <= set(COMMANDS)


def test_a_switch_that_changes_nothing_is_named_where_it_is_on(prompt: Prompt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_DIRECT_RDMA_ENABLED", raising=False)
    monkeypatch.setenv("ENABLE_NPU_POD_EVICTON", "true")
    for value, warnings in ((None, 0), ("true", 1), ("1", 1), ("false", 0), ("", 0)):
        if value is not None:
            monkeypatch.setenv("GPU_DIRECT_RDMA_ENABLED", value)
        log = LogForm(as_json=False).reporter(lambda: 0.0)
        for profile in profiles.builtin().values():
            warn_of_unheeded(profile, log)
        warned = prompt.capfd.readouterr().err
        assert warned.count("GPU_DIRECT_RDMA_ENABLED is set but has no effect here") == warnings
        assert "ENABLE_NPU_POD_EVICTON is set, and no option reads it: did you mean ENABLE_NPU_POD_EVICTION?" in warned
