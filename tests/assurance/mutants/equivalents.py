"""Changes of a line that change nothing that a test could notice, each with the reason."""

from __future__ import annotations

EQUIVALENTS: dict[tuple[str, str, str], str] = {}
"""By module below the package, the line and what it becomes, both without indentation."""
