"""Owns the stand-in driver trees: which variants there are, how they are built and how they are spoilt.

Each variant is a driver root as a vendor ships one: `<variant>/lib/modules/<kernel release>/updates/*.ko[.zst]`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import zstandard

from tests.support import cache
from tests.support.kernel.kernel_image import KernelImage
from tests.support.kernel.tools import SOURCES, KernelTierError, run

MODULES = ("rebellions_core", "rebellions")
VENDOR_MODULES = ("habanalabs", "habanalabs_cn", "habanalabs_ib", "habanalabs_en", "furiosa_rngd")
FOLDERS = {"modules": MODULES, "vendor_modules": VENDOR_MODULES}
"""Folders of sources, each with the modules that are built from it."""

OLD_VERSION = "1.2.92"
NEW_VERSION = "2.0.1"


@dataclass(frozen=True)
class Variant:
    """One driver root, built from a folder of sources. `same_as`: the variant whose build is taken, not built again."""

    name: str
    version: str
    defines: str = ""
    same_as: str = ""
    has_foreign_release: bool = False
    has_foreign_crc: bool = False
    is_below_foreign_release: bool = False
    has_dependency_list: bool = True
    is_compressed: bool = False
    folder: str = "modules"


VARIANTS = (
    Variant("v1", OLD_VERSION),
    Variant("v2", NEW_VERSION),
    Variant("bad-init", NEW_VERSION, defines="-DFAIL_INIT=1"),
    Variant("no-exit", NEW_VERSION, defines="-DNO_EXIT=1"),
    Variant("needs-firmware", NEW_VERSION, defines="-DNEED_FIRMWARE=1"),
    Variant("unknown-symbol", NEW_VERSION, defines="-DNEED_ABSENT=1"),
    Variant("wrong-kernel", NEW_VERSION, same_as="v2", has_foreign_release=True, has_foreign_crc=True),
    Variant("other-release", NEW_VERSION, same_as="v2", has_foreign_release=True),
    Variant(
        "absent-kernel",
        NEW_VERSION,
        same_as="v2",
        has_foreign_release=True,
        has_foreign_crc=True,
        is_below_foreign_release=True,
    ),
    Variant("no-modules-dep", NEW_VERSION, same_as="v2", has_dependency_list=False),
    Variant("v2-zst", NEW_VERSION, same_as="v2", is_compressed=True),
    Variant("unknown-symbol-zst", NEW_VERSION, same_as="unknown-symbol", is_compressed=True),
    Variant("vendors-v1", OLD_VERSION, folder="vendor_modules"),
    Variant("vendors-v2", NEW_VERSION, folder="vendor_modules"),
    Variant("vendors-bad-init", NEW_VERSION, defines="-DFAIL_INIT=1", folder="vendor_modules"),
)


def prepare(image: KernelImage) -> Path:
    """The folder with one driver root per variant, built unless sources and kernel are unchanged.

    Raises KernelTierError where a build fails.
    """

    def make(out: Path) -> None:
        for variant in VARIANTS:
            _lay_out(variant, _built(variant, out / "obj", image), out / variant.name, image)
        shutil.rmtree(out / "obj")

    sources = [path for folder in FOLDERS for path in sorted((SOURCES / folder).iterdir())]
    return cache.entry("drivers", cache.key(image.release, image.version, *sources, Path(__file__)), make)


def foreign_release(release: str) -> str:
    return ("7" if release[0] != "7" else "8") + release[1:]


def _built(variant: Variant, objects: Path, image: KernelImage) -> Path:
    folder = objects / (variant.same_as or variant.name)
    if variant.same_as:
        return folder
    shutil.copytree(SOURCES / variant.folder, folder)
    # Only the variant that needs an absent symbol may lack one; for the others it stays an error.
    lenient = ["KBUILD_MODPOST_WARN=1"] if "NEED_ABSENT" in variant.defines else []
    settings = [f"M={folder}", f"DRIVER_VERSION={variant.version}", f"DRIVER_DEFINES={variant.defines}", *lenient]
    run(["make", "-C", image.headers, *settings, "modules"], timeout_s=3000)
    return folder


def _lay_out(variant: Variant, built: Path, root: Path, image: KernelImage) -> None:
    release = foreign_release(image.release) if variant.is_below_foreign_release else image.release
    folder = root / f"lib/modules/{release}/updates"
    folder.mkdir(parents=True)
    for module in FOLDERS[variant.folder]:
        content = (built / f"{module}.ko").read_bytes()
        if variant.has_foreign_release:
            content = _with_foreign_release(content, image.release)
        if variant.has_foreign_crc:
            content = _with_foreign_crc(content)
        if variant.is_compressed:
            (folder / f"{module}.ko.zst").write_bytes(zstandard.compress(content))
        else:
            (folder / f"{module}.ko").write_bytes(content)
    if variant.has_dependency_list:
        run(["depmod", "-b", root, release], timeout_s=300)


def _with_foreign_release(content: bytes, release: str) -> bytes:
    old = f"vermagic={release} ".encode()
    if content.count(old) != 1:
        raise KernelTierError(f"expected one vermagic of {release} in a built module, found {content.count(old)}")
    return content.replace(old, f"vermagic={foreign_release(release)} ".encode())


def _with_foreign_crc(content: bytes) -> bytes:
    """`content` with another checksum for module_layout, the symbol that every module is checked by.

    A kernel with CONFIG_MODVERSIONS compares these and leaves the release in vermagic alone (kernel/module/version.c).
    An entry of `__versions` is an unsigned long and then the symbol's name (struct modversion_info).
    """
    name = content.find(b"module_layout\0")
    if name < 8:
        raise KernelTierError("a built module has no checksum of module_layout")
    return content[: name - 8] + bytes([content[name - 8] ^ 0xFF]) + content[name - 7 :]
