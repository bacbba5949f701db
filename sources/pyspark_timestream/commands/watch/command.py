"""The command `watch`: a live page of the time of queries, or the same as text or JSON."""

import argparse
import dataclasses
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Thread
from typing import Any, Final

from pyspark_timestream.commands.explanation import COUNTERS
from pyspark_timestream.commands.peek.command import read_given, select_reading
from pyspark_timestream.commands.peek.detect import NoSample
from pyspark_timestream.commands.watch.follow import (
    CheckpointFollower,
    QueryView,
    StreamView,
    list_remarks,
    rank_partitions,
)
from pyspark_timestream.commands.watch.live import PAGES, LivePage
from pyspark_timestream.core.instants import format_instant
from pyspark_timestream.core.report import (
    align_within,
    cut_text,
    escape_controls,
    format_count,
    format_time,
    shorten_duration,
    wrap_text,
)
from pyspark_timestream.core.serving import PageServer, address_arguments, announce
from pyspark_timestream.errors import OptionError, TimestreamError
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.ranges import Partition

_GROUP: Final = "timestream-watch"
"""A client must name a group; this one never joins it and commits nothing to it."""

MIN_PAUSE_S: Final = 0.5
_PAUSES: Final = 50
"""Pause this many times as long as a look takes, so that looking takes two per cent of a core."""

_ASK_S: Final = 2.0
_MAX_TEXT_LANES: Final = 12
_CLEAR: Final = "\x1b[H\x1b[2J\x1b[3J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT",
        help="a query's checkpoint: a local directory")  # fmt: skip
    parser.add_argument("--bootstrap-servers", metavar="SERVERS",
        help="ask these brokers how many records wait")  # fmt: skip
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE",
        help="any option of the source, such as kafka.security.protocol=SSL")  # fmt: skip
    for name, settings in address_arguments(4050).items():
        parser.add_argument(name, **settings)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--text", action="store_true",
        help="show it in this terminal, and keep it up to date")  # fmt: skip
    shown.add_argument("--json", action="store_true", help="print it once, as JSON")


def main(given: argparse.Namespace) -> int:
    """Run the command until Ctrl-C; returns the exit code."""
    # The client's log would repeat what a note says at its end.
    logging.getLogger("pyspark_timestream").addHandler(logging.NullHandler())
    try:
        followers = [CheckpointFollower(each) for each in given.checkpoints]
        ends = None
        if given.bootstrap_servers:
            ends = LogEnds(given)
        if given.json:
            print(json.dumps(to_json(_look(followers, ends, once=True)), indent=2))
        elif given.text:
            _show_text(followers, ends)
        else:
            _serve(followers, ends, given.host, given.port)
    except (NoSample, OptionError, TimestreamError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _serve(
    followers: Sequence[CheckpointFollower], ends: "LogEnds | None", host: str, port: int
) -> None:
    page = LivePage("Time of queries", _read_clock)
    server = PageServer(host, port, page.answer, PAGES, "--port")
    print(announce(host, server.port), flush=True)
    _repeat(lambda: page.publish(_look(followers, ends)))


def _show_text(followers: Sequence[CheckpointFollower], ends: "LogEnds | None") -> None:
    is_terminal = sys.stdout.isatty()
    last = ""

    def show() -> None:
        nonlocal last
        width, height = shutil.get_terminal_size((100, 40))
        lines = format_text(_look(followers, ends), _read_clock(), width)
        text = "\n".join(lines[: height - 1] if is_terminal else lines)
        if text != last:
            print(f"{_CLEAR if is_terminal else ''}{text}", flush=True)
            last = text

    _repeat(show, least_s=1.0)


def _repeat(look: Callable[[], None], least_s: float = MIN_PAUSE_S) -> None:
    while True:
        began_s = time.monotonic()
        look()
        time.sleep(max(least_s, _PAUSES * (time.monotonic() - began_s)))


def _look(
    followers: Sequence[CheckpointFollower], ends: "LogEnds | None", *, once: bool = False
) -> list[QueryView]:
    views = []
    for follower in followers:
        follower.read()
        log = follower.log
        notes: tuple[str, ...] = ()
        if ends is not None and log.partitions:
            if once:
                ends.ask(log.partitions)
            else:
                ends.watch(log.partitions)
            log.ends.update(ends.known)
            notes = (ends.trouble,) if ends.trouble else ()
        view = follower.view(_read_clock())
        views.append(dataclasses.replace(view, notes=(*view.notes, *notes)))
    return views


def _read_clock() -> int:
    return time.time_ns() // 1_000


class LogEnds:
    """Asks the brokers where logs end, every two seconds, in a thread of its own.

    A broker that does not answer holds nothing up: `trouble` says so, and `known` stays.

    Args:
        given: the command's arguments.

    Raises:
        OptionError, NoSample: an option is wrong.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self._raw = select_reading(read_given(given))
        read_kafka_options({**self._raw, "subscribe": "any"})
        self.known: dict[Partition, int] = {}
        self.trouble = ""
        self._asked: frozenset[Partition] = frozenset()
        self._broker: Any = None
        self._is_asking = False

    def watch(self, partitions: Sequence[Partition]) -> None:
        """Ask for these partitions as well, from now on."""
        self._asked |= frozenset(partitions)
        if not self._is_asking:
            self._is_asking = True
            Thread(target=self._ask_on, name="timestream-ends", daemon=True).start()

    def ask(self, partitions: Sequence[Partition]) -> None:
        """Ask once, now; what goes wrong is in `trouble`."""
        from pyspark_timestream.kafka.client.broker import Broker

        try:
            if self._broker is None:
                topics = ",".join(sorted({part.topic for part in partitions}))
                options = read_kafka_options({**self._raw, "subscribe": topics})
                self._broker = Broker(options, _GROUP)
            self.known = {**self.known, **self._broker.ends(partitions)}
            self.trouble = ""
        except (OptionError, TimestreamError, OSError) as error:
            self.trouble = f"what waits is as of earlier: {error}"

    def _ask_on(self) -> None:
        while True:
            self.ask(sorted(self._asked))
            time.sleep(_ASK_S)


# -- text and JSON ---------------------------------------------------------------------------------


def format_text(views: Sequence[QueryView], now_us: int, width: int) -> list[str]:
    """Return the lines that a terminal shows."""
    lines = [cut_text(f"Time of queries at {format_instant(now_us)}", width)]
    for view in views:
        lines += ["", *_describe_query(view, now_us, width)]
    return lines


def _describe_query(view: QueryView, now_us: int, width: int) -> Iterator[str]:
    yield from _wrap(view.name, width)
    age = ""
    if view.changed_us is not None:
        age = f", last batch {shorten_duration(max(now_us - view.changed_us, 0))} ago"
    yield from _wrap(f"{view.status}{': ' if view.detail else ''}{view.detail}{age}", width)
    for note in view.notes:
        yield from _wrap(f"Note: {note}", width)
    for stream in view.streams:
        yield from _describe_stream(stream, now_us, width)
    for each in view.state:
        yield from _wrap(f"state of {each.operator}: {format_count(each.rows, 'row')}", width)


def _describe_stream(stream: StreamView, now_us: int, width: int) -> Iterator[str]:
    told = stream.explanation
    yield ""
    yield cut_text(escape_controls(", ".join(told.topics) or "no topic"), width)
    cti = f"CTI {format_time(told.cti_us)}"
    if told.cti_us is not None and not stream.is_final:
        cti += f", {_format_gap(now_us - told.cti_us)} the wall clock"
    yield from _wrap(cti, width)
    first = told.diagnoses[0]
    yield from _wrap(f"=> {first.kind}: {first.cause}. {first.full_text}.", width)
    yield from _wrap(f"   Fix: {first.fix}.", width)
    if len(told.diagnoses) > 1:
        others = format_count(len(told.diagnoses) - 1, "more finding")
        yield from _wrap(f"   and {others}: explain has them", width)
    yield from _wrap(", ".join(f"{stream.counts[name]:,} {name}" for name in COUNTERS), width)
    facts = rank_partitions(told.partitions)
    rows = [["", "partition", "CTI", "behind", "waiting", "remarks"]]
    for fact in facts[:_MAX_TEXT_LANES]:
        waiting = stream.waiting.get(fact.partition, fact.lag)
        rows.append(
            [
                "*" if fact.is_cause else "",
                fact.name,
                format_time(fact.cti_us),
                "" if fact.behind_us is None else shorten_duration(fact.behind_us),
                "?" if waiting is None else f"{waiting:,}",
                ", ".join(list_remarks(fact)),
            ]
        )
    rows += [
        ["*", f"{part.topic} {part.number}", "", "", "", "missing"]
        for part in stream.missing[:_MAX_TEXT_LANES]
    ]
    yield from align_within(rows, width)
    if len(facts) > _MAX_TEXT_LANES:
        yield cut_text(f"... and {len(facts) - _MAX_TEXT_LANES} more partitions", width)


def _format_gap(us: int) -> str:
    return f"{shorten_duration(abs(us))} {'behind' if us >= 0 else 'ahead of'}"


def _wrap(text: str, width: int) -> list[str]:
    first, *others = wrap_text(escape_controls(text), max(width - 3, 1))
    return [first, *(f"   {line}" for line in others)]


def to_json(views: Sequence[QueryView]) -> list[dict[str, Any]]:
    """Return what is shown as plain values; times are microseconds since 1970."""
    return [
        {
            "query": view.name,
            "status": view.status,
            "detail": view.detail,
            "changed_us": view.changed_us,
            "notes": list(view.notes),
            "streams": [_stream_to_json(stream) for stream in view.streams],
            "batches": [each._asdict() for each in view.triggers],
        }
        for view in views
    ]


def _stream_to_json(stream: StreamView) -> dict[str, Any]:
    told = stream.explanation
    return {
        "topics": list(told.topics),
        "batch": told.batch,
        "cti_us": told.cti_us,
        "is_final": stream.is_final,
        "since_us": told.since_us,
        "findings": [
            {"kind": str(each.kind), "cause": each.cause, "text": each.full_text, "fix": each.fix}
            for each in told.diagnoses
        ],
        "counts": dict(stream.counts),
        "curve": [list(point) for point in stream.curve],
        "partitions": [
            {
                "topic": fact.partition.topic,
                "partition": fact.partition.number,
                "cti_us": fact.cti_us,
                "last_us": fact.last_us,
                "behind_us": fact.behind_us,
                "waiting": stream.waiting.get(fact.partition, fact.lag),
                "holds_back": fact.is_cause,
                "remarks": list_remarks(fact),
                "counters": dict(fact.counters),
            }
            for fact in told.partitions
        ],
        "missing": [[part.topic, part.number] for part in stream.missing],
    }
