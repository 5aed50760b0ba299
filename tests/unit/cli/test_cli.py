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
from driver_manager.cli.main import COMMANDS, PREFLIGHT, RECONCILE, cli, run, warn_of_unheeded
from driver_manager.cli.options import document
from driver_manager.domain.errors import EXIT_MEANINGS, ExitCode
from tests.support.fakes.schemas import conforms

LOOPS = ("health-watch", "rebooter")
"""They print nothing but their log."""

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


def errors(captured: str) -> list[str]:
    """The messages of the log: JSON lines of a command of pods, text without a clock of one that people type."""
    lines = captured.splitlines()
    return [json.loads(one)["message"] if one[0] == "{" else one.removeprefix("error: ") for one in lines]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["no-such-command"], "No such command 'no-such-command'"),
        (["stauts"], "No such command 'stauts'. Did you mean 'status'?"),
        (["rollout", "histroy"], "No such command 'histroy'. Did you mean 'history'?"),
        (["profile", "shema"], "No such command 'shema'. Did you mean 'schema'?"),
        (["undo"], "No such command 'undo'. Did you mean 'rollout undo'?"),
        (["status", "--kubeconfg", "x"], "No such option '--kubeconfg'. Did you mean '--kubeconfig'?"),
        (["rollout", "undo", "--namespce", "n"], "No such option '--namespce'. Did you mean '--namespace'?"),
        (["status", "--log-format", "text"], "--log-format is not an option of driver-manager status"),
        (["holders", "--sys-root=/x"], "--sys-root is not an option of driver-manager holders"),
        (["reconcile-driver-state", "--pod-name", "x"], "--pod-name is not an option of driver-manager reconcile-"),
        (["--no-such-option"], "No such option"),
        (["plan", "--no-such-option"], "No such option"),
        (["plan", "extra"], "unexpected extra argument"),
        (["reconcile-driver-state", "--reconcile-deadline"], "requires an argument"),
        (
            ["reconcile-driver-state", "--reconcile-deadline", "soon"],
            "'soon' is not a duration such as 90, 30s, 5m or 1h30m",
        ),
        (["reconcile-driver-state", "--reconcile-deadline", "-5m"], "'-5m' is not a duration"),
        (["reconcile-driver-state", "--reconcile-deadline", "721h"], "longer than 30 days"),
        (["plan", "--driver-load", "magic"], "'magic' is not one of 'container', 'manager'"),
        (["status", "-o", "xml"], "'xml' is not one of 'text', 'json', 'yaml'"),
        (["reconcile-driver-state", "--log-level", "loud"], "'loud' is not one of"),
        (["plan", "--host-root", "/"], "the name of the node is not set"),
        (["plan", "--node-name", "Not A Node"], "'Not A Node' is not the name of a node"),
        (["plan", "--node-name", "n", "--profile", "intel"], "there is no profile 'intel'"),
        (["plan", "--node-name", "n", "--profile-file", "/absent.toml"], "profile file /absent.toml cannot be read"),
        (
            ["reconcile-driver-state", "--drain-pod-selector-label", "app in web"],
            "DRAIN_POD_SELECTOR_LABEL is not a label selector: ",
        ),
        (
            ["reconcile-driver-state", "--wait-for-completion-selector", "a=b,"],
            "WAIT_FOR_COMPLETION_SELECTOR is not a label selector",
        ),
        (
            ["reconcile-vfio-state", "--drain-pod-selector-label", ","],
            "DRAIN_POD_SELECTOR_LABEL is not a label selector",
        ),
        (["preflight", "--drain-pod-selector-label", "=x"], "unable to parse requirement: =x"),
        (["reconcile-driver-state", "--drain-pod-selector-label", "a>1"], "unable to parse requirement: a>1"),
        (["reconcile-driver-state", "--dry-run", "--drain-pod-selector-label", "!"], "unable to parse requirement: !"),
        (["reconcile-driver-state", "--drain-timeout-seconds", "for ever"], "'for ever' is not a duration"),
        (["plan", "--node-name", "n", "--kubeconfig", "/absent"], "to the cluster with /absent: no such file"),
        (["sandbox", "no-such-scenario"], "there is no scenario 'no-such-scenario'"),
        (["sandbox", "upgrade", "--all"], "a scenario and --all cannot be used together"),
    ],
)
def test_a_usage_error_is_two_lines_and_exit_code_two(
    capfd: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    assert run(argv) == ExitCode.USAGE
    out, err = capfd.readouterr()
    what, remedy = errors(err)
    assert said in what
    assert "\n" not in what
    assert remedy.startswith("what to do: ")
    assert out == ""


def test_a_mistyped_scenario_is_answered_with_the_one_that_is_near(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["sandbox", "wedge-to-rebot"]) == ExitCode.USAGE
    what, remedy = errors(capfd.readouterr().err)
    assert what == "there is no scenario 'wedge-to-rebot'"
    assert remedy == "what to do: Did you mean 'wedge-to-reboot'? See `driver-manager sandbox --list`."


def test_no_command_shows_the_help_and_is_a_usage_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert run([]) == ExitCode.USAGE
    assert "reconcile-driver-state" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        *(
            ([command, "-o", "json", "--node-name", "n", "--kubeconfig", "/absent"], "/absent")
            for command in NODE_COMMANDS
        ),
        (["upgrade", "n", "-o", "json", "--kubeconfig", "/absent"], "/absent"),
        (["status", "-o", "json", "--bogus"], "No such option"),
        (["reconcile-driver-state", "-ojson", "--reconcile-deadline", "soon"], "'soon' is not a duration"),
        (["restore", "--output=json", "extra"], "unexpected extra argument"),
        (["holders", "--output", "json", "--bogus"], "No such option"),
    ],
)
def test_with_output_for_programs_an_error_is_in_that_form_too(
    capfd: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    assert run(argv) == ExitCode.USAGE
    out, err = capfd.readouterr()
    body = conforms("failure", out)
    assert (body["exitCode"], set(body)) == (2, {"schemaVersion", "error", "remedy", "exitCode"})
    assert said in body["error"]
    assert errors(err) == [body["error"], f"what to do: {body['remedy']}"]
    run(["yaml" if word == "json" else word.replace("json", "yaml") for word in argv])
    assert yaml.safe_load(capfd.readouterr().out) == body


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
    ("argv", "wanted", "form"),
    [
        *((argv, "auto", TYPED) for argv in (["plan"], ["rollout", "status"], ["rollout", "contrller"], ["staus"])),
        *((argv, "auto", OF_PODS) for argv in (["rebooter"], ["rollout", "controller"], ["uninstall_driver"])),
        (["health-watch"], "text", WITH_CLOCK),
        (["plan"], "json", OF_PODS),
    ],
)
def test_only_commands_of_pods_log_json_and_a_clock(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argv: list[str], wanted: str, form: str
) -> None:
    monkeypatch.setenv("LOG_FORMAT", wanted)
    assert run([*argv, "--bogus"]) == ExitCode.USAGE
    out, err = capfd.readouterr()
    assert (out, re.fullmatch(form, err) is not None) == ("", True), err


def test_the_last_line_goes_to_the_termination_log(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    run(["plan", "--node-name", "Bad"])
    assert not log.exists()
    log.touch()
    run(["plan", "--node-name", "Bad"])
    assert log.read_text().startswith("exit 2: 'Bad' is not the name of a node")
    assert "NODE_NAME" in log.read_text()


@pytest.mark.parametrize("name", ["NODE_NAME", "KUBECONFIG", "DRIVER_LOAD", "RECONCILE_DEADLINE", "FORCE_REINSTALL"])
def test_an_empty_variable_counts_as_unset(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "")
    assert run(["plan", "--host-root", "/"]) == ExitCode.USAGE
    assert "the name of the node is not set" in errors(capfd.readouterr().err)[0]


def test_a_flag_goes_before_its_variable(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "From-Env")
    run(["plan"])
    run(["plan", "--node-name", "From-Flag"])
    said = errors(capfd.readouterr().err)
    assert "From-Env" in said[0]
    assert "From-Flag" in said[2]


@pytest.mark.parametrize(
    ("variable", "named"),
    [
        ("POD_TERMINATION_TIMEOUT", "'--pod-termination-timeout' (POD_TERMINATION_TIMEOUT): '5 minutes' is not"),
        ("WAIT_FOR_COMPLETION_TIMEOUT", "Invalid value for WAIT_FOR_COMPLETION_TIMEOUT: '5 minutes' is not"),
        ("ENABLE_GPU_POD_EVICTION", "(ENABLE_NPU_POD_EVICTION or ENABLE_GPU_POD_EVICTION): '5 minutes' is neither"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named_with_its_option(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str, named: str
) -> None:
    monkeypatch.setenv(variable, "5 minutes")
    assert run(["reconcile-driver-state"]) == ExitCode.USAGE
    assert named in errors(capfd.readouterr().err)[0]


@pytest.mark.parametrize("words", [["plan"], ["reconcile-driver-state", "--dry-run"]])
def test_a_mistyped_variable_is_an_error_of_a_plan(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("ENABLE_NPU_POD_EVICTON", "true")
    assert run([*words, "--node-name", "n", "--kubeconfig", "/absent"]) == ExitCode.USAGE
    said = "no option reads ENABLE_NPU_POD_EVICTON (did you mean ENABLE_NPU_POD_EVICTION?)"
    assert errors(capfd.readouterr().err)[0] == said


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


def test_the_help_explains_every_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == ExitCode.DONE
    text = " ".join(capfd.readouterr().out.split())
    assert all(f"{code.value} {meaning}" in text for code, meaning in EXIT_MEANINGS.items())
    assert set(EXIT_MEANINGS) == set(ExitCode)
    assert all(command in text for command in COMMANDS)


def test_the_scenarios_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["sandbox", "--list", "-o", "json"]) == ExitCode.DONE
    assert "upgrade" in [row["name"] for row in json.loads(capfd.readouterr().out)]


# a vendor's manifests run unchanged: its own manager's commands stand for ours, on its profile

NVIDIA = {"uninstall_driver": RECONCILE, "preflight_check": PREFLIGHT}


def command(name: str) -> click.Command | None:
    """What the command line runs for `name`."""
    return cli.get_command(click.Context(cli), name)


def profile_of(name: str, *argv: str) -> str:
    """The value of --profile that the command sees."""
    found = command(name)
    assert found is not None
    return str(found.make_context(name, list(argv)).params["profile"])


@pytest.mark.parametrize(("name", "ours"), NVIDIA.items())
def test_nvidias_names_stand_for_our_commands_on_its_profile(name: str, ours: str) -> None:
    found, meant = command(name), command(ours)
    assert found is not None
    assert meant is not None
    assert found.callback is meant.callback
    assert (found.name, profile_of(name), profile_of(ours)) == (name, "nvidia", profiles.AUTO)


def test_the_profile_may_still_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert profile_of("uninstall_driver", "--profile", "auto") == "auto"
    monkeypatch.setenv("DRIVER_PROFILE", "rebellions")
    assert profile_of("uninstall_driver") == "rebellions"


def test_another_name_is_no_command() -> None:
    assert command("uninstall-driver") is None


def test_no_name_has_two_meanings() -> None:
    names = [
        name
        for profile in profiles.builtin().values()
        for name in (*profile.commands.reconcile, *profile.commands.preflight)
    ]
    assert len({*names, *COMMANDS}) == len(names) + len(COMMANDS)
    assert set(names) == set(NVIDIA)
    assert {RECONCILE, PREFLIGHT} <= set(COMMANDS)


@pytest.mark.parametrize(
    ("value", "warns"), [("true", True), ("1", True), ("false", False), ("", False), (None, False)]
)
def test_a_switch_that_changes_nothing_here_is_named_where_it_is_on(
    value: str | None, warns: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GPU_DIRECT_RDMA_ENABLED", raising=False)
    if value is not None:
        monkeypatch.setenv("GPU_DIRECT_RDMA_ENABLED", value)
    monkeypatch.setenv("ENABLE_NPU_POD_EVICTON", "true")
    log = LogForm(as_json=False).reporter(lambda: 0.0)
    for profile in profiles.builtin().values():
        warn_of_unheeded(profile, log)
    warned = capsys.readouterr().err
    assert warned.count("GPU_DIRECT_RDMA_ENABLED is set but has no effect here") == int(warns)
    assert "ENABLE_NPU_POD_EVICTON is set, and no option reads it: did you mean ENABLE_NPU_POD_EVICTION?" in warned
