"""Windows of all kinds, as a document holds them: to the millisecond."""

from __future__ import annotations

from hypothesis import strategies as st

from driver_manager.domain.outage import Outage, OutagePart

MILLISECONDS = st.integers(1, 10**9).map(lambda number: number / 1_000)
WINDOWS = st.builds(
    Outage,
    began_s=st.integers(0, 2**41).map(lambda number: number / 1_000),
    seconds=MILLISECONDS,
    parts=st.dictionaries(st.sampled_from(OutagePart), MILLISECONDS),
    is_open=st.booleans(),
)
