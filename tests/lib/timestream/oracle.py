"""Semantics 2, 3 and 4 for one partition, one record at a time; `rules.step` must agree."""

from collections import Counter
from typing import NamedTuple

COUNTED = {"drop": "dropped", "adjust": "adjusted", "flag": "flagged", "fail": ""}
"""The counter of late events by policy; a policy without one fails here."""
LOWEST, FINAL = -62_135_596_800_000_000, 253_402_300_799_000_000


class Event(NamedTuple):
    """`kind`: point, interval, start or end; a time of None could not be read."""

    kind: str
    start: int | None
    end: int | None = None


class Record(NamedTuple):
    """A record: perhaps an event, perhaps a mark (a time, or "?" that cannot be read), perhaps a
    close; `stamp` is its timestamp."""

    event: Event | None
    mark: int | str | None = None
    writer: str = ""
    close: bool = False
    stamp: int | None = None


class Failed(Exception):
    """Policy `fail`: (index, kind, compared time or None, CTI in force or None)."""


def outcome(function, *arguments, **more):
    """The value that `function` returns, or the arguments of the `Failed` that it raises."""
    try:
        return function(*arguments, **more)
    except Failed as failed:
        return failed.args


def run(
    events, policy="drop", every=None, span=None, delay=0, cti=None, future=None, writers=(),
    timeout=None, ahead="keep",
):  # fmt: skip
    """The output in order: ("row", index, start, end, violation) and ("cti", time); the counters;
    the CTI in force at the end; for each record its time window."""
    assert policy in COUNTED, policy
    out, tally, count, base = [], Counter(), 0, None
    live, clock, noted, windows = dict.fromkeys(writers), None, None, []
    heard = dict.fromkeys(writers)

    def take(mark):
        nonlocal cti, count, base
        if mark is None or (cti is not None and mark <= cti):
            return False
        cti, count, base = mark, 0, mark
        out.append(("cti", mark))
        tally["ctis"] += 1
        return True

    def least():
        return min(live.values()) if live and None not in live.values() else None

    for index, record in enumerate(events):
        if not isinstance(record, Record):
            record = Record(record)
        if record.stamp is not None:
            clock = record.stamp if clock is None else max(clock, record.stamp)
        if timeout is not None and clock is not None:
            heard = {name: clock if at is None else at for name, at in heard.items()}
            live = {name: mark for name, mark in live.items() if clock - heard[name] <= timeout}
            take(least())
        standing = cti
        named = [mark for name, mark in live.items() if name and mark is not None]
        windows.append((min(named), noted) if named else (None, None))

        if record.event is not None:
            kind, start, end = record.event
            tally["events"] += 1
            known = start is not None and (kind in ("point", "start") or end is not None)
            if kind not in ("point", "interval", "start", "end") or not known:
                bad = True
            else:
                bad = kind in ("interval", "end") and end <= start
            t = None if bad else end if kind == "end" else start
            late = not bad and cti is not None and t < cti
            far = None not in (future, record.stamp) and not bad and t > record.stamp + future
            early = far and not late
            if policy == "fail" and (bad or late):
                raise Failed(index, "malformed" if bad else "late", t, cti)
            if ahead == "fail" and early:
                raise Failed(index, "future", t, cti)
            tally["malformed"] += bad
            tally["future"] += early
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
                    tally[COUNTED[fate]] += 1
            elif not early or ahead == "keep":
                word = "future" if early and policy == "flag" else None
                out.append(("row", index, start, end, word))
            if not bad and kind != "end" and not far:
                count, base = count + 1, t if base is None else base
                if (every and count == every) or (span and t - base >= span):
                    count, base, mark = 0, t, min(max(t - delay, LOWEST), FINAL)
                    if cti is None or mark > cti:
                        cti = mark
                        out.append(("cti", mark))
                        tally["ctis"] += 1

        if record.mark == "?":
            if policy == "fail":
                raise Failed(index, "mark", None, standing)
            tally["ignoredCtis"] += 1
        elif record.mark is not None:
            before = live.get(record.writer)
            live[record.writer] = record.mark if before is None else max(before, record.mark)
            heard[record.writer] = clock
            if record.writer:
                noted = record.mark if noted is None else max(noted, record.mark)
            tally["ignoredCtis"] += not take(least())
        if record.close and record.writer and record.writer in live:
            del live[record.writer], heard[record.writer]
            take(least())
    return out, +tally, cti, windows


def run_writers(
    records, every=None, span=None, delay=0, future=None, writers=(), timeout=None, grace=None
):
    """Semantics 4.8 to 4.11 for (writer, time or None, timestamp or None): the places and times
    of CTIs, -1 being before the first record, and the places of late events."""
    live = {name: {"cti": None, "count": 0, "base": None, "seen": None} for name in writers}
    clock = first = cti = None
    out, late = [], []

    def rise(place):
        nonlocal cti
        known = [writer["cti"] for writer in live.values()]
        waits = grace is not None and (clock is None or clock - first < grace)
        if not waits and known and None not in known and (cti is None or min(known) > cti):
            cti = min(known)
            out.append((place, cti))

    for place, (name, time, stamp) in enumerate(records):
        if stamp is not None:
            clock, first = max(stamp, clock or stamp), stamp if first is None else first
        for writer in live.values():
            writer["seen"] = clock if writer["seen"] is None else writer["seen"]
        if timeout is not None and clock is not None:
            live = {n: w for n, w in live.items() if clock - w["seen"] <= timeout}
        rise(place - 1)
        if time is None:
            continue
        if cti is not None and time < cti:
            late.append(place)
        if None not in (future, stamp) and time > stamp + future:
            continue
        new = {"cti": None, "count": 0, "base": None}
        writer = live[name] = live.get(name, new) | {"seen": clock}
        writer["count"] += 1
        writer["base"] = time if writer["base"] is None else writer["base"]
        if writer["count"] == every or (span and time - writer["base"] >= span):
            mark = min(max(time - delay, LOWEST), FINAL)
            mark = mark if writer["cti"] is None else max(mark, writer["cti"])
            live[name] = writer | {"cti": mark, "count": 0, "base": time}
        rise(place)
    return out, late, cti
