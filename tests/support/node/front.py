"""The proxy between a node's pods and its API server, as a program in the node.

Its arguments are ADDRESS SERVER CA CERT KEY POLICY. Today's clients evict by policy/v1, which a server before 1.21 has
under another name only; POLICY is the server's. Must not import the product.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.support.control_plane.proxy import GOOD, Proxy


def main() -> None:
    address, server, ca, certificate, key, policy = sys.argv[1:]
    identity = {GOOD: (Path(certificate), Path(key))}
    with Proxy(server, Path(ca), identity, address=(address, 443), policy=policy):
        signal.pause()


if __name__ == "__main__":
    main()
