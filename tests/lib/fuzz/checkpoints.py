"""The contents of checkpoints and consumer groups: offsets, log entries, clocks, positions."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from pages import parse_html
from timestream.builders import PASSING, at
from timestream.changing import Changing, Logs
from timestream.driven import Driven, FakeBroker
from timestream.histories import NOON, SECOND, share, state, with_writers
from timestream.progress_events import event, offset_of, parse_page

from fuzz.engine import Chance, Target
from fuzz.mutations import damage_bytes, damage_json, damage_json_text
from fuzz.options import any_text
from pyspark_timestream.commands.explanation import explain_checkpoint
from pyspark_timestream.commands.metrics_export import TimeMetrics
from pyspark_timestream.commands.watch.command import format_text, to_json
from pyspark_timestream.commands.watch.follow import CheckpointFollower
from pyspark_timestream.commands.watch.page import render_sections
from pyspark_timestream.core.checkpoint import LogEntry, check_offset, find_mistake
from pyspark_timestream.core.why import is_own_error
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.driver import trackers
from pyspark_timestream.kafka.offsets.group_metadata import (
    decode_group_metadata,
    encode_group_metadata,
)
from pyspark_timestream.kafka.offsets.offset import MalformedPayloads
from pyspark_timestream.kafka.writer.ledger import LedgerEntry
from pyspark_timestream.rules.ticks import Ticks
from pyspark_tseries.model.commits import CommitId
from pyspark_tseries.read.delivery import Position

SHARES: Final = [
    share(state(5), size=3, pending=((120, NOON), (140, NOON + SECOND))),
    share(with_writers(2, 1, north=2, south=None), restart_points=((0, 1),)),
    share(state(None, events=0), malformed_payloads=MalformedPayloads((("type", 2),), 6, 5, 5)),
]
OFFSETS: Final = [offset_of(SHARES, number) for number in range(4)]
CLOCK: Final = {
    "from": 3, "settings": {"delay": "0.5"}, "skipped": 0, "started_us": NOON, "to": 5,
    "version": 1, "zero_us": NOON,
}  # fmt: skip
POSITION: Final = Position(
    "id", 1, True, 4, 9, 0, "limit 3", 2, "a", ("b", 4), 7, NOON, CommitId(4, 5)
).to_json()

IMPATIENT: Final = patch.object(trackers, "LEADER_CHANGE_GRACE_S", 0)
"""No broker changes its leaders here; later tests of the process wait for theirs."""


def offsets() -> Target:
    """An offset that Spark gives back after a restart: it is planned from or refused."""

    def make(chance: Chance) -> Any:
        broker = FakeBroker(p0=(0, 200), p1=(0, 200), p2=(100, 130))
        driven = Driven(broker, ctiFrequency="10")
        driven.plan()
        # Only the id is random; all else is the same in each run.
        driven.offset = {**driven.offset, "stream": "0" * 32, "unpinned": {"group": "g"}}
        return damage_json(driven.offset, chance, chance.choice([1, 1, 2, 5]))

    @IMPATIENT
    def run(case: Any) -> str:
        broker = FakeBroker(p0=(0, 300), p1=(0, 200), p2=(100, 130))
        driven = Driven(broker, ctiFrequency="10")
        driven.offset = case
        driven.driver.mark_committed(case) if isinstance(case, dict) else None
        driven.plan()
        driven.plan()
        json.dumps(driven.driver.progress())
        return "planned"

    return Target(make, run)


CLOCKS: Final[dict[str, tuple[str, ...]]] = {
    "ctiDelay": ("0 s", "2 s", "-1 s"),
    "ctiFrequency": ("1", "3", "2 seconds"),
    "ctiHeader": ("c",),
    "futurePolicy": ("drop", "keep"),
    "idleTimeout": ("3 s", "9 s"),
    "maxFuture": ("1 s", "6 s"),
    "subscribe": ("topic,more", "topic"),
    "violationPolicy": tuple(PASSING),
    "writerFrom": ("header:w",),
    "writerGrace": ("5 s",),
    "writerTimeout": ("5 s",),
    "writers": ("a", "a,b", "b"),
}
"""Options that a restart may change, and values that are legal, if not always together."""

BEGINNINGS: Final = ("now", "now", "now", "2023-11-14T22:13:25Z", "1970-01-01T00:00:04Z", None)


def changes() -> Target:
    """Restarts with other options, hostile ones among them: planned and replayed, or refused.

    A refused change has no effect, so the options before it go on. At last the offset itself is
    damaged.
    """

    def make(chance: Chance) -> Any:
        restarts = []
        for _ in range(chance.choice([1, 2, 2, 3, 5])):
            asked: dict[str, str | None] = {"changeFrom": chance.choice(BEGINNINGS)}
            for name in chance.sample(sorted(CLOCKS), chance.choice([0, 1, 1, 2, 4])):
                is_hostile = chance.random() < 0.2
                asked[name] = any_text(chance) if is_hostile else chance.choice(CLOCKS[name])
            if chance.random() < 0.1:
                asked[chance.choice(["changeFrom", *CLOCKS])] = any_text(chance)
            records = [(chance.randrange(12), chance.choice("ab")) for _ in range(4)]
            restarts.append((asked, records))
        first = chance.choice([{}, {"writerFrom": "header:w", "writers": "a"}, {"ctiHeader": "c"}])
        damage = chance.randrange(10**6) if chance.random() < 0.6 else None
        return {"ctiFrequency": "1", **first}, restarts, damage

    @IMPATIENT
    def run(case: Any) -> str:
        good, restarts, damage = case
        query = Changing(Logs("topic", "more"), **good)
        query.drain()
        refused = 0
        for asked, records in restarts:
            for place in query.logs.records:
                query.logs.records[place] += [
                    (1_000 * second, {"w": writer, "c": str(1_000 * second)})
                    for second, writer in records
                ]
            before = len(query.offsets)
            try:
                query.restart(**{**good, **asked})
                query.drain()
                good = {**good, **asked}
            except Exception as error:
                if not (isinstance(error, OptionError) or is_own_error(error)):
                    raise
                refused += 1
                del query.offsets[before:], query.rows[before - 1 :]
                query.restart(**good)
                query.drain()
            for last in range(before, len(query.offsets)):
                assert query.run(last - 1, last) == query.rows[last - 1]
        if damage is not None:
            offset = damage_json(json.loads(query.offsets[-1]), Chance(damage), 1)
            query.offsets.append(json.dumps(offset))
            query.restart(**good)
            query.drain()
            return "damaged and planned"
        return "refused" if refused else "changed"

    return Target(make, run)


def logs() -> Target:
    """A checkpoint with damaged entries: `explain` and `watch` show it, or refuse by name."""

    def make(chance: Chance) -> list[bytes]:
        entries = []
        for number, offset in enumerate(OFFSETS):
            metadata = {"batchTimestampMs": NOON // 1000 + number, "batchWatermarkMs": 5}
            lines = [json.dumps(metadata), json.dumps(offset.to_json())]
            if chance.random() < 0.5:
                at_line = chance.randrange(2)
                lines[at_line] = damage_json_text(json.loads(lines[at_line]), chance)
            content = "\n".join(["v1", *lines]).encode("utf-8", "surrogatepass")
            entries.append(damage_bytes(content, chance) if chance.random() < 0.1 else content)
        return entries

    def run(case: list[bytes]) -> str:
        root = Path(tempfile.mkdtemp())
        try:
            (root / "offsets").mkdir()
            (root / "commits").mkdir()
            for number, content in enumerate(case):
                (root / "offsets" / str(number)).write_bytes(content)
                (root / "commits" / str(number)).write_text("v1\n{}")
            follower = CheckpointFollower(str(root))
            follower.read()
            view = follower.view(NOON + SECOND)
            format_text([view], NOON, 80)
            json.dumps(to_json([view]))
            for html in render_sections([view]).values():
                parse_html(html)
            told = explain_checkpoint(str(root), None, True)
            str(told)
            parse_html(told._repr_html_())
            return "explained"
        finally:
            shutil.rmtree(root)

    return Target(make, run)


def entries() -> Target:
    """A file of Spark's offset log as sinks read it: each property is read, or a ValueError."""

    def make(chance: Chance) -> str:
        metadata = {"batchTimestampMs": 1, "batchWatermarkMs": 5}
        names = chance.choice([("v1", "", ""), ("v2", "0:", "1:"), ("v2", "a:", "b:")])
        lines = [names[0], damage_json_text(metadata, chance), f"{names[1]}{{}}", f"{names[2]}-"]
        return "\n".join(lines[: chance.randrange(5)])

    def run(case: str) -> str:
        try:
            entry = LogEntry(case)
            assert entry.planned_us is not None
            assert entry.watermark_us is None or entry.watermark_us > 0
            assert len(entry.offsets) >= 1
        except (ValueError, RecursionError):
            return "refused"
        return "read"

    return Target(make, run)


def group_metadata() -> Target:
    """The text in a consumer group: perhaps a clock, perhaps not, and never an error."""
    part = at(0, "trips")
    whole = encode_group_metadata(OFFSETS[0], part, state(9, events=30), MalformedPayloads())
    right = decode_group_metadata(OFFSETS[0], part, whole)

    def make(chance: Chance) -> str:
        return damage_json_text(json.loads(whole), chance)

    def run(case: str) -> str:
        found = decode_group_metadata(OFFSETS[0], part, case)
        assert find_mistake(found) is None, found
        LedgerEntry.decode(5, case)
        return "right" if found == right else "empty" if found.clock is None else "other"

    return Target(make, run)


def positions() -> Target:
    """The offsets of a clock and of a subscription to a store."""

    def make(chance: Chance) -> Any:
        whole = chance.choice([CLOCK, POSITION])
        return whole is CLOCK, damage_json(whole, chance, chance.choice([1, 1, 3]))

    def run(case: Any) -> str:
        is_clock, offset = case
        if is_clock:
            check_offset(offset, CLOCK["settings"])
            assert find_mistake(Ticks.from_json(offset)) is None
            return "clock"
        if isinstance(offset, dict):
            assert find_mistake(Position.from_json(offset)) is None
        return "position"

    return Target(make, run)


def progress() -> Target:
    """Reports of a query, as `TimeMetrics` takes them: its pages stay pages."""

    def make(chance: Chance) -> list[Any]:
        reports = [event(each, batch=number) for number, each in enumerate(OFFSETS)]
        for report in reports:
            for source in report["sources"]:
                # Spark makes all else of a report.
                if chance.random() < 0.5:
                    offset = json.loads(source["endOffset"])
                    source["endOffset"] = damage_json_text(offset, chance)
        return reports

    def run(case: list[Any]) -> str:
        metrics = TimeMetrics()
        live = metrics._page = _live()
        for report in case:
            metrics.onQueryProgress(
                SimpleNamespace(progress=SimpleNamespace(json=json.dumps(report)))
            )
        parse_page(metrics.text())
        answer = live.answer("/watch/sections", "")
        assert answer is not None
        for html in json.loads(answer.text)["sections"].values():
            parse_html(html)
        return "shown"

    return Target(make, run)


def _live() -> Any:
    from pyspark_timestream.commands.watch.live import LiveQueries

    return LiveQueries(lambda: NOON, 60 * SECOND)


TARGETS: Final = {
    "offsets": offsets,
    "changes": changes,
    "logs": logs,
    "entries": entries,
    "group_metadata": group_metadata,
    "positions": positions,
    "progress": progress,
}
