"""A container of a driver pod in the sandbox: `command` runs a command in it.

Only a real container has a service account at its fixed path, its pod's uid in its cgroup, and TLS to the API server.
Here both are in a folder, which the processes of the container hand on, and the embedded server speaks plain HTTP.

Run as a program, it is the lean interpreter of that container, in place of `driver_manager.cli.lean_entry`.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
from pathlib import Path

UID = "uid"
"""The file with the pod's uid, beside its token."""

LAUNCH = "from driver_manager.sandbox.pod import command; command()"
SELF = Path("/proc/self")


def command_line_in(account: Path, *words: str) -> list[str]:
    """`driver-manager WORD…` in the pod whose service account is in the folder `account`."""
    return [sys.executable, "-c", LAUNCH, str(account), *words]


def command() -> None:
    """Run the command line after the folder of the service account."""
    enter(Path(sys.argv.pop(1)))
    from driver_manager.cli.start import entry  # noqa: PLC0415  # after the pod is entered

    entry()


def enter(account: Path) -> None:
    """Let this process, and the lean interpreters that it starts, be in the pod with this service account."""
    # In a lean interpreter these can be imported once it is started.
    from driver_manager.adapters.host import holders  # noqa: PLC0415
    from driver_manager.adapters.http import Bounded  # noqa: PLC0415
    from driver_manager.adapters.kube import transport  # noqa: PLC0415
    from driver_manager.cli import lean  # noqa: PLC0415

    uid, whose = (account / UID).read_text(), holders.whose

    class Plain(transport.InPod):
        def _context(self) -> ssl.SSLContext:
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

        def connection(self, trust: ssl.SSLContext, connect_s: float) -> Bounded:
            return Bounded(self._host, self._port, timeout=connect_s)

    transport.SERVICE_ACCOUNT = account
    transport.InPod = Plain  # type: ignore[misc]
    holders.whose = lambda process: (uid, "") if process == SELF else whose(process)
    lean.ENTRY = Path(__file__)


def _be_lean() -> int:
    package, target, descriptor = sys.argv[1:]
    with os.fdopen(int(descriptor), "rb") as file:
        handed = json.loads(file.read())
    sys.path += [package, *handed["path"]]
    enter(Path(handed["document"]["way"]["account"]))
    from driver_manager.cli import lean  # noqa: PLC0415

    return lean.main(target, handed)


if __name__ == "__main__":
    sys.exit(_be_lean())
