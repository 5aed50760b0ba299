"""Runs a command in an image's root as a container runtime would: mounts and processes of its own, the host at /host.

Runs in the guest only, where the image's files are a folder of the host's.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.kernel.inside import require_guest

IMAGE_VARIABLE = "GUEST_IMAGE_ROOT"
WITHOUT_IMAGE_VARIABLE = "GUEST_WITHOUT_IMAGE"
HOST = "/host"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # of the image's configuration
TIMEOUT_S = 280.0  # below the guest's limit on silence; a whole start of the interpreter under emulation


def run_in_image(root: Path, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `argv` in `root`, privileged, with the host read-only at /host but for its /run: the operator's contract."""
    require_guest()
    inner = shlex.quote(str(root))
    script = [
        "set -e",
        f"mount --bind {inner} {inner}",
        f"mkdir -p {inner}{HOST}",
        f"mount --rbind / {inner}{HOST}",
        f"mount -o remount,bind,ro {inner}{HOST}",
        f"for kind in sys dev; do mount --rbind /$kind {inner}/$kind; done",
        f"mount -t proc proc {inner}/proc",
        f"exec chroot {inner} {shlex.join(argv)}",
    ]
    words = ["unshare", "--mount", "--pid", "--fork", "--propagation", "slave", "/bin/sh", "-c", "\n".join(script)]
    return subprocess.run(
        words, env={**env, "PATH": PATH}, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def image_root() -> Path | None:
    path = os.environ.get(IMAGE_VARIABLE)
    return Path(path) if path else None
