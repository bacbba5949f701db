"""Contract section 3.4 for one partition, one event at a time: what `cti.step` must agree with."""

from collections import Counter
from typing import NamedTuple

LOWEST, FINAL = -62_135_596_800_000_000, 253_402_300_799_000_000


class Event(NamedTuple):
    """`kind`: point, interval, start or end; a time of None could not be read."""

    kind: str
    start: int | None
    end: int | None = None


class Failed(Exception):
    """Policy `fail`: (index, malformed, judged time or None, CTI in force or None)."""


def run(events, policy="drop", every=None, span=None, delay=0, cti=None):
    """The output in order: ("row", index, start, end, violation) and ("cti", time); the counters;
    the CTI in force at the end."""
    out, tally, count, base = [], Counter(), 0, None
    for index, (kind, start, end) in enumerate(events):
        tally["events"] += 1
        known = start is not None and (kind in ("point", "start") or end is not None)
        if kind not in ("point", "interval", "start", "end") or not known:
            bad = True
        else:
            bad = kind in ("interval", "end") and end <= start
        t = None if bad else end if kind == "end" else start
        late = not bad and cti is not None and t < cti
        if policy == "fail" and (bad or late):
            raise Failed(index, bad, t, cti)
        tally["malformed"] += bad
        if bad or late:
            fate = "drop" if policy == "adjust" and (bad or kind == "point") else policy
            if fate == "adjust" and kind == "interval" and end <= cti:
                fate = "drop"
            if fate == "flag":
                out.append(("row", index, start, end, "malformed" if bad else "late"))
            elif fate == "adjust" and kind == "end":
                out.append(("row", index, start, cti, "adjusted"))
            elif fate == "adjust":
                out.append(("row", index, cti, end, "adjusted"))
            if late:
                tally[{"drop": "dropped", "adjust": "adjusted", "flag": "flagged"}[fate]] += 1
        else:
            out.append(("row", index, start, end, None))
        if bad or kind == "end":
            continue
        count, base = count + 1, t if base is None else base
        if (every and count == every) or (span and t - base >= span):
            count, base, mark = 0, t, min(max(t - delay, LOWEST), FINAL)
            if cti is None or mark > cti:
                cti = mark
                out.append(("cti", mark))
                tally["ctis"] += 1
    return out, +tally, cti
