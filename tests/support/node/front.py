"""The proxy between a node's pods and its API server, as a program in the node: `front.py ADDRESS SERVER CA CERT KEY`.

Today's clients evict by policy/v1, which the old server has under another name only. Must not import the product.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.proxy_identity import GOOD


def main() -> None:
    """Until it is killed."""
    address, server, ca, certificate, key = sys.argv[1:]
    with Proxy(server, Path(ca), {GOOD: (Path(certificate), Path(key))}, address=(address, 443)):
        signal.pause()


if __name__ == "__main__":
    main()
