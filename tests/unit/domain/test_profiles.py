"""A profile is data: shipped ones are complete, a bad file names key, value and what was expected."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from driver_manager import profiles
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.profile import NodeMaker, Profile, Strategy, decode_profile, encode_profile, is_safe_root
from tests.support.fakes.builders import PROFILES

GOOD = """
name = "own"
strategy = "in-place"
pci_vendor = "1234"
[keys]
journal = "example.com/journal"
cordon = "example.com/cordon"
[modules]
roots = ["own"]
[paths]
driver_root = "/run/own/driver"
state_file = "/run/own/state"
load_record = "/run/own/record"
"""


def test_each_file_is_a_shipped_profile_and_keeps_its_wire_contract() -> None:
    assert set(profiles.builtin()) == {file.stem for file in Path(profiles.__file__).parent.glob("*.toml")} != set()
    ascend, nvidia, rebellions = (PROFILES[name] for name in ("ascend", "nvidia", "rebellions"))
    assert (ascend.strategy, rebellions.strategy) == (Strategy.REBOOT, Strategy.IN_PLACE)
    assert rebellions.keys.journal == "rebellions.ai/npu-driver-manager.journal"
    assert rebellions.keys.cordon == "rebellions.ai/npu-driver-upgrade-cordon"
    assert rebellions.deploy.driver_key == "rebellions.ai/npu.deploy.driver"
    assert rebellions.deploy.paused_value == "paused-for-driver-upgrade"
    assert rebellions.paths.state_file == "/run/rbln/rbln-driver.state"
    assert nvidia.keys.upgrade_state == "nvidia.com/gpu-driver-upgrade-state"
    assert {name for name, one in PROFILES.items() if one.container_unloads} == {"nvidia"}


@pytest.mark.parametrize("name", PROFILES)
def test_a_shipped_profile_is_consistent(name: str) -> None:
    profile = PROFILES[name]
    keys = [key for key in asdict(profile.keys).values() if key]
    assert len(set(keys)) == len(keys)
    assert len(profile.deploy.paused_value) <= 63
    assert "-" not in "".join(profile.modules.roots), "/sys/module writes - as _"
    if profile.strategy is Strategy.REBOOT:
        assert profile.paths.reboot_marker
        assert profile.modules.own == ()


def test_a_small_profile_is_enough_and_where_another_program_reboots_so_is_a_marker() -> None:
    profile = profiles.parse(GOOD, "own.toml")
    assert (profile.name, profile.probe) == ("own", None)
    assert profile.deploy.keys_in({"": "true", "any": "true"}) == frozenset()
    text = GOOD.replace("in-place", "reboot").replace("[paths]", '[paths]\nreboot_marker = "/var/lib/own/marker"')
    assert profiles.parse(text, "own.toml").strategy is Strategy.REBOOT


CHANGED = [
    *(('name = "own"', "name = own", "is not TOML"), ('name = "own"', 'nmae = "own"', "unknown key nmae")),
    ('name = "own"', "", "name is missing"),
    ('name = "own"', "name = 1", "name is 1, expected letters, digits, dots and dashes"),
    ('name = "own"', 'name = "o wn"', "name is 'o wn', expected letters, digits, dots and dashes"),
    ('name = "own"', 'name = ""', "name is ''"),
    ('strategy = "in-place"', 'strategy = "live"', "strategy is 'live', expected one of in-place, reboot"),
    ('"in-place"', '"reboot"', 'paths.reboot_marker is missing, and strategy = "reboot" needs it'),
    ('journal = "example.com/journal"', "", "keys.journal is missing"),
    ('journal = "example.com/journal"', 'journal = ""', "keys.journal is ''"),
    ('cordon = "example.com/cordon"', 'cordn = "x"', "unknown key keys.cordn"),
    ('cordon = "example.com/cordon"', 'cordon = "example.com/journal"', "expected a different key for each"),
    ("[modules]", 'state = "example.com/cordon"\n[modules]', "expected a different key for each"),
    ('roots = ["own"]', "roots = []", "modules.roots is [], expected at least one"),
    ('roots = ["own"]', 'roots = "own"', "modules.roots is 'own', expected a list of texts"),
    ('roots = ["own"]', "roots = [1]", "modules.roots is [1], expected a list of texts"),
    ('"/run/own/state"', '"run/own/state"', "paths.state_file is 'run/own/state', expected an absolute path"),
    ('"/run/own/state"', '"/run/../etc/x"', "paths.state_file is '/run/../etc/x'"),
    ('"/run/own/state"', '""', "paths.state_file is '', expected an absolute path"),
    ('"/run/own/record"', '""', "paths.load_record is '', expected an absolute path"),
    ('"/run/own/driver"', '"/"', "paths.driver_root is '/', expected a folder of the driver's own"),
    ('"/run/own/driver"', '"/run"', "paths.driver_root is '/run', expected a folder of the driver's own"),
    ('"/run/own/driver"', '""', "paths.driver_root is '', expected a folder of the driver's own"),
    ('state_file = "/run/own/state"', "", "paths.state_file is missing"),
    ('load_record = "/run/own/record"', "", "paths.load_record is missing"),
    ("[modules]", '[modules]\nown = ["*"]', "modules.own is '*', expected a module name"),
]
PATHS = [
    ('device_nodes = ["/dev/"]', "device_nodes is '/dev/'"),
    ('device_nodes = ["/opt/x*"]', "device_nodes is '/opt/x*'"),
    ('device_nodes = ["/dev/**x"]', "device_nodes is '/dev/**x'"),
    ('device_nodes_made_by = "udev"', "device_nodes_made_by is 'udev', expected one of module, user-space"),
]
PASSTHROUGH = [
    ('mode_key = "mode"\nmode_value = "vm"', "mode_key is 'mode', expected a key"),
    ('mode_key = "example.com/mode"', "mode_value is '', expected a value if mode_key is set"),
    ('mode_value = "vm"', "mode_value is 'vm', expected a value if mode_key is set"),
    ('resources = ["example.com/*"]', "resources is 'example.com/*', expected a pattern"),
    ('auxiliary = ["audio"]', "auxiliary is 'audio', expected four lower-case"),
]
MODE = '[passthrough]\nmode_key = "example.com/m"\nmode_value = "vm"\n[deploy]\non_unless_false = ["example.com/m"]'
ADDED = [
    ("probe = 1", "probe is 1, expected a table"),
    ("container_unloads = 1", "container_unloads is 1, expected true or false"),
    ("container_unloads = true", "deploy.prefix is missing, and container_unloads needs it"),
    ('host_services = ["/etc"]', "host_services is '/etc'"),
    ('[probe]\ntool = "t"\nparser = "magic"', "probe.parser is 'magic', expected one of"),
    ('[probe]\ntool = "t"\ntimeout_s = 0', "probe.timeout_s is 0, expected a number above 0"),
    ('[probe]\ntool = "t"\ntimeout_s = true', "probe.timeout_s is true"),
    ('[probe]\ntool = "t"\ntimeout_s = nan', "probe.timeout_s is nan"),
    ('[probe]\ntool = "t"\ntimeout_s = inf', "probe.timeout_s is inf"),
    ("[probe]", "probe.tool is missing"),
    ('[upgrade_metrics]\ndone = "a-b"', "upgrade_metrics.done is 'a-b', expected the name of a metric"),
    ('[upgrade_metrics]\ndone = "driver_manager_x"', "upgrade_metrics.done is 'driver_manager_x'"),
    ('[upgrade_metrics]\ndone = "a"\nfailed = "a"', "expected a different name for each"),
    (MODE, "deploy.on_unless_false is 'example.com/m', expected a key that has no other meaning"),
    *(
        (f'[deploy]\nprefix = "x/"\npaused_value = "{value}"', f"deploy.paused_value is '{value}'")
        for value in ("", "p" * 64, "true")
    ),
]


def test_a_bad_profile_names_file_key_value_and_expectation() -> None:
    for old, new, why in (
        *CHANGED,
        ("[paths]", 'deploy = "x"\n[paths]', "unknown key modules.deploy"),
        ("[paths]", "[passthrough]\n[paths.passthrough]\n[paths]", "unknown key"),
        *(("[paths]", f"[paths]\n{text}", f"paths.{why}") for text, why in PATHS),
        *(("[keys]", f"{text}\n[keys]", why) for text, why in ADDED),
        *(("[keys]", f"[passthrough]\n{text}\n[keys]", f"passthrough.{why}") for text, why in PASSTHROUGH),
    ):
        assert old in GOOD
        with pytest.raises(ConfigError) as caught:
            profiles.parse(GOOD.replace(old, new, 1), "own.toml")
        assert "own.toml" in caught.value.what
        assert why in caught.value.what
        assert caught.value.remedy


def test_a_profile_says_who_makes_the_device_nodes_and_the_module_does_unless_it_says_so() -> None:
    nodes = '[paths]\ndevice_nodes = ["/dev/own[0-9]*"]\n'
    by_module = profiles.parse(GOOD.replace("[paths]", nodes), "own.toml")
    assert by_module.paths.device_nodes_made_by is NodeMaker.MODULE
    assert by_module.expected_nodes == ("/dev/own[0-9]*",)
    later = profiles.parse(GOOD.replace("[paths]", f'{nodes}device_nodes_made_by = "user-space"'), "own.toml")
    assert (later.paths.device_nodes, later.expected_nodes) == (("/dev/own[0-9]*",), ())
    assert {name for name, one in profiles.builtin().items() if not one.expected_nodes} == {"nvidia"}
    for one in (by_module, later, *profiles.builtin().values()):
        assert decode_profile(encode_profile(one)) == one


def test_a_profile_with_a_rebooter_has_all_that_the_rebooter_writes() -> None:
    text = (Path(profiles.__file__).parent / "ascend.toml").read_text()
    assert profiles.parse(text, "whole").strategy is Strategy.REBOOT
    text = text.replace('recovery = ["reboot"]\n', "")
    keys = ("reboot_required", "approve_reboot", "pre_reboot_boot_id", "reboot_in_progress", "reboot_slots")
    for name in (*(f"keys.{key}" for key in keys), "paths.reboot_marker", "paths.reboot_evidence"):
        less = re.sub(rf"^{name.partition('.')[2]} = .*\n", "", text, flags=re.MULTILINE)
        with pytest.raises(ConfigError, match=rf"^profile less: {re.escape(name)} is missing"):
            profiles.parse(less, "less")


OWN_ROOTS = ("/run/rbln/driver/", "/opt/vendor", "/var/lib/Ascend/driver", "/usr/local/vendor/driver")
VITAL = (
    *("/", "//", "/run", "/run/", "/usr", "/etc", "/dev", "/proc", "/sys", "/boot", "/home", "/lib", "/var"),
    *("/var/lib", "/var/lib/", "/opt", "/opt/", "/mnt", "/srv", "/data"),
)
IN_VITAL = (
    *("/var/lib/kubelet", "/var/lib/kubelet/pods", "/var/lib/containerd", "/run/containerd"),
    *("/var/lib/rancher", "/var/lib/rancher/k3s/agent", "/run/k3s", "/run/k0s"),
    *("/sys/fs/cgroup", "/dev/shm", "/proc/sys", "/lib/modules", "/run/systemd", "/var/lib/docker/overlay2"),
)
ODDLY_SPELLED = ("//run", "/run/.", "/run/rbln/..")


def test_a_root_whose_mounts_may_go_is_one_of_the_drivers_own() -> None:
    own = [*OWN_ROOTS, *(profile.paths.driver_root for profile in PROFILES.values())]
    assert [path for path in own if not is_safe_root(path)] == []
    assert [path for path in ("", *VITAL, *IN_VITAL, *ODDLY_SPELLED) if is_safe_root(path)] == []


def test_a_users_file_adds_a_profile_or_replaces_one_and_one_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    for content in (None, b"\xff\xfe"):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"own\.toml cannot be read"):
            profiles.known(str(file))
    file.write_text(GOOD)
    assert set(profiles.known(str(file))) == {*PROFILES, "own"}
    file.write_text(GOOD.replace('"own"', '"nvidia"', 1))
    assert profiles.known(str(file))["nvidia"].pci_vendor == "1234"
    assert set(profiles.known(None)) == set(PROFILES)


BARE = {"ascend": replace(PROFILES["ascend"], present_labels=())}


def test_a_profile_is_picked_by_name_then_devices_then_labels_and_none_or_two_is_an_error() -> None:
    def pick(known: dict[str, Profile], wanted: str, labels: list[str], present: set[str]) -> str:
        return profiles.pick(wanted, known, labels, lambda profile: profile.name in present).name

    deploy = "nvidia.com/gpu.deploy"
    rows: list[tuple[dict[str, Profile], str, list[str], set[str], str]] = [
        *((PROFILES, "nvidia", [], {"ascend"}, "nvidia"), (PROFILES, "auto", [], {"rebellions"}, "rebellions")),
        (PROFILES, "auto", [f"{deploy}.driver"], {"rebellions"}, "rebellions"),
        (PROFILES, "auto", [f"{deploy}.device-plugin"], set(), "nvidia"),
        (PROFILES, "auto", ["openfuyao.com/npu.present"], set(), "ascend"),
        (PROFILES, "intel", [], set(), "error: no profile 'intel'"),
        (PROFILES, "auto", [], set(), "error: no known PCI device and no known node label"),
        (PROFILES, "auto", [], {"ascend", "nvidia"}, "error: ascend, nvidia"),
        (PROFILES, "auto", [f"{deploy}.x", "rebellions.ai/npu.deploy.y"], set(), "error: nvidia, rebellions"),
        (BARE, "auto", ["any/label"], set(), "error: no known"),
    ]
    for known, wanted, labels, present, picked in rows:
        remedy, (_, is_error, why) = "", picked.partition("error: ")
        try:
            found = pick(known, wanted, labels, present)
        except ConfigError as error:
            found, remedy = error.what, error.remedy
        assert (why in found and "DRIVER_PROFILE" in remedy) if is_error else found == picked, (picked, found)


def test_the_keys_follow_from_the_journals() -> None:
    nvidia, ascend = "nvidia.com/gpu-driver-manager", "npu.openfuyao.com/driver-manager"
    for name, stem in (("rebellions", "rebellions.ai/npu-driver-manager"), ("nvidia", nvidia), ("ascend", ascend)):
        keys = PROFILES[name].keys
        assert (keys.state, keys.last_outcome) == (f"{stem}.state", f"{stem}.last-outcome")


def own(journal: str, more: str = "", prefix: str = "example.com/deploy.") -> Profile:
    """A user's profile that knows nothing of these keys, but for `more`."""
    text = GOOD.replace('"example.com/journal"', f'"{journal}"')
    return profiles.parse(text.replace("[modules]", f'{more}\n[deploy]\nprefix = "{prefix}"\n[modules]'), "own.toml")


def test_a_profile_from_before_these_keys_keeps_working() -> None:
    at, long = "example.com/", "x" * 54
    for journal, more, state in (
        *(("npu.journal", "", "npu.state"), ("what-was-taken", "", "driver-manager.state")),
        ("npu.journal", f'upgrade_state = "{at}npu.state"', "driver-manager.state"),
        *(("npu.journal", f'state = "{at}mine"', "mine"), (f"{long}.journal", "", f"{long}.state")),
    ):
        keys = own(at + journal, more).keys
        assert keys.state == at + state
        assert keys.last_outcome.endswith(".last-outcome")
        assert len(keys.last_outcome.partition("/")[2]) <= 63


def test_no_key_of_ours_is_taken_for_a_deploy_label() -> None:
    for prefix, journal in product(("", "npu", "npu.", "driver-"), ("npu.journal", "other")):
        profile = own(f"example.com/{journal}", prefix=f"example.com/{prefix}")
        labels = {profile.keys.state: "ready", f"example.com/{prefix}plugin": "true", profile.deploy.driver_key: "true"}
        assert profile.deploy_keys(labels) == {f"example.com/{prefix}plugin"}, (prefix, journal)


def test_an_example_is_right_marked_and_never_unloads() -> None:
    examples = sorted((Path(profiles.__file__).parents[2] / "deploy/profiles-unverified").glob("*.toml"))
    assert {path.stem for path in examples} == {"aws-neuron", "cambricon", "hygon", "metax", "moore-threads"}
    for path in examples:
        found = profiles.parse(path.read_text(), path.name)
        assert path.read_text().startswith("# UNVERIFIED: "), path
        assert (found.name, found.name in PROFILES) == (path.stem, False)
        assert found.strategy is Strategy.REBOOT, "whether its modules may leave a running kernel is not known"
