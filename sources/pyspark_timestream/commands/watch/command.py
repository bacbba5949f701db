"""The command `watch`: a live page of the time of queries, or the same as text or JSON."""

import argparse
import dataclasses
import gc
import importlib
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Lock, Thread
from typing import Any, Final

from pyspark_timestream.commands.explanation import (
    SHOWN_COUNTERS,
    OperatorState,
    describe_changes,
    describe_operator,
)
from pyspark_timestream.commands.peek.command import read_arguments, select_reading
from pyspark_timestream.commands.peek.examine import CommandError
from pyspark_timestream.commands.watch.case_records import CaseRecords, read_case
from pyspark_timestream.commands.watch.follow import (
    Case,
    ChainStore,
    CheckpointFollower,
    QueryView,
    StreamView,
    build_chain,
    list_remarks,
    rank_partitions,
)
from pyspark_timestream.commands.watch.live import LivePage
from pyspark_timestream.core.instants import format_instant, from_datetime
from pyspark_timestream.core.processes import read_wall_clock
from pyspark_timestream.errors import (
    MissingExtra,
    OptionError,
    ReasonedError,
    TimestreamError,
    escape_controls,
)
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.report import (
    align_within,
    begin_sentence,
    cell_width,
    cut_text,
    format_count,
    format_time,
    shorten_duration,
    wrap_text,
)
from pyspark_timestream.serving import (
    ONLY_PAGE,
    PageServer,
    address_arguments,
    announce,
    is_loopback,
)

_GROUP: Final = "timestream-watch"
"""A client must name a group; this one never joins it and commits nothing to it."""

MIN_PAUSE_S: Final = 0.5
_PAUSES: Final = 80
"""Pause this many times as long as reading takes: reading takes at most 1.25 % of a core."""

_MAX_PAUSE_S: Final = 4.0
"""The first read takes a whole history, the next ones only new entries, so limit the pause."""

_STATE_PAUSES: Final = 200
_LEAST_STATE_S: Final = 1.0

_COLLECT_AFTER: Final = 100_000
"""Parsing an offset of a thousand partitions makes enough objects for many collections."""

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
    parser.add_argument("--store", action="append", default=[], metavar="STORE", dest="stores",
        help="a store of the chain, for its CTI; may be repeated")  # fmt: skip
    for name, settings in address_arguments(4050).items():
        parser.add_argument(name, **settings)
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--text", action="store_true",
        help="show it in this terminal, and keep it up to date")  # fmt: skip
    output.add_argument("--json", action="store_true", help="print it once, as JSON")


def main(arguments: argparse.Namespace) -> int:
    """Run the command until Ctrl-C; returns the exit code."""
    # The client's log would repeat what a note says at its end.
    logging.getLogger("pyspark_timestream").addHandler(logging.NullHandler())
    try:
        followers = [CheckpointFollower(location) for location in arguments.checkpoints]
        ends = None
        if arguments.bootstrap_servers is not None:
            ends = LogEnds(arguments)
        elif arguments.option:
            raise CommandError(
                "--option is about brokers, and --bootstrap-servers is missing; next step: add it, "
                "or leave --option out"
            )
        watched = _Watched(
            followers, ends, [StoreReader(location) for location in arguments.stores]
        )
        # All objects of now stay, and those that a batch leaves behind can wait for a collection.
        gc.freeze()
        gc.set_threshold(_COLLECT_AFTER, 50, 50)
        if arguments.json:
            watched.read(once=True)
            shown = to_json(watched.take_views(), watched.take_stores())
            print(json.dumps(shown, indent=2))
        elif arguments.text:
            _show_text(watched)
        else:
            _serve(watched, arguments.host, arguments.port)
    except (CommandError, OptionError, TimestreamError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _serve(watched: "_Watched", host: str, port: int) -> None:
    # A page that other machines can reach shows no values of records.
    read_records = watched.sampler() if is_loopback(host) else None
    page = LivePage(
        "Time of queries",
        read_wall_clock,
        watched.take_views,
        read_case=read_records,
        take_stores=watched.take_stores,
    )
    server = PageServer(host, port, page.answer, ONLY_PAGE, "--port")
    print(announce(host, server.port), flush=True)

    def look() -> None:
        if watched.read():
            page.note_news()

    _repeat(look)


def _show_text(watched: "_Watched") -> None:
    is_terminal = sys.stdout.isatty()
    last_text = ""

    def show() -> None:
        nonlocal last_text
        width, height = shutil.get_terminal_size((100, 40))
        watched.read()
        lines = format_text(watched.take_views(), read_wall_clock(), width, watched.take_stores())
        text = "\n".join(lines[: height - 1] if is_terminal else lines)
        if text != last_text:
            print(f"{_CLEAR if is_terminal else ''}{text}", flush=True)
            last_text = text

    _repeat(show, least_s=1.0)


def _repeat(refresh: Callable[[], None], least_s: float = MIN_PAUSE_S) -> None:
    while True:
        began_s = time.thread_time()
        refresh()
        pause_s = _PAUSES * (time.thread_time() - began_s)
        time.sleep(max(least_s, min(pause_s, _MAX_PAUSE_S)))


class _Watched:
    """The checkpoints, read by one thread and shown by others, and where their logs end."""

    def __init__(
        self,
        followers: Sequence[CheckpointFollower],
        ends: "LogEnds | None",
        stores: Sequence["StoreReader"],
    ) -> None:
        self._followers = followers
        self._ends = ends
        self._stores = stores
        self._last_answer: object = None
        self._next_state_s: dict[CheckpointFollower, float] = {}
        self._lock = Lock()

    def read(self, *, once: bool = False) -> bool:
        """Read news in the checkpoints and stores, and return whether there were any.

        With `once` ask the brokers now, and not in the background.
        """
        stores = self.take_stores()
        for store in self._stores:
            store.read()
        is_new = stores != self.take_stores()
        for follower in self._followers:
            with self._lock:
                is_new = follower.read() or is_new
                is_new = self._read_state(follower, once=once) or is_new
                partitions = follower.log.partitions if self._ends is not None else []
            if self._ends is None or not partitions:
                continue
            if once:
                self._ends.ask(partitions)
            else:
                self._ends.watch(partitions)
            with self._lock:
                follower.log.ends.update(self._ends.ends)
        if self._ends is not None:
            is_new |= self._last_answer != self._ends.answer
            self._last_answer = self._ends.answer
        return is_new

    def _read_state(self, follower: CheckpointFollower, *, once: bool) -> bool:
        """Read the rows of state, but only so often that it takes at most 0.5 % of a core."""
        if not once and time.monotonic() < self._next_state_s.get(follower, 0.0):
            return False
        began_s = time.thread_time()
        is_new = follower.read_state()
        pause_s = max(_STATE_PAUSES * (time.thread_time() - began_s), _LEAST_STATE_S)
        self._next_state_s[follower] = time.monotonic() + pause_s
        return is_new

    def take_stores(self) -> list[ChainStore]:
        """Return the stores as they were read last."""
        return [store.facts for store in self._stores]

    def sampler(self) -> Callable[[Case], CaseRecords] | None:
        """Return the function that reads the records of a case; None: the brokers are not known."""
        return None if self._ends is None else self._ends.read_case

    def take_views(self) -> list[QueryView]:
        """Return the present view."""
        views = []
        for follower in self._followers:
            with self._lock:
                view = follower.view(read_wall_clock())
            if self._ends is not None and self._ends.trouble and view.streams:
                view = dataclasses.replace(view, notes=(*view.notes, self._ends.trouble))
            views.append(view)
        return views


class StoreReader:
    """Reads the CTI of a store, in this thread; `facts` say what goes wrong.

    Raises:
        MissingExtra: pyspark_tseries is not installed.
    """

    def __init__(self, location: str) -> None:
        try:
            # By name: this package works without stores, and does not know them (see the layers).
            self._door: Any = importlib.import_module("pyspark_tseries").TimeSeries
        except ModuleNotFoundError as error:
            raise MissingExtra(
                "--store needs pyspark_tseries, which is not installed",
                next_step="pip install 'pyspark-timestream'",
            ) from error
        self._location = location
        self._series: Any = None
        self.facts = ChainStore(location, location, None, "it is not read yet")

    def read(self) -> None:
        """Read it now."""
        try:
            if self._series is None:
                self._series = self._door.open(self._location)
                description = self._series.describe()
                self.facts = ChainStore(description["id"], description["path"], None)
            cti = self._series.cti()
            cti_us = None if cti is None else from_datetime(cti)
            self.facts = dataclasses.replace(self.facts, cti_us=cti_us, trouble="")
        except (ReasonedError, OSError, ValueError) as error:
            self._series = None
            self.facts = dataclasses.replace(self.facts, trouble=str(error))


class LogEnds:
    """Asks the brokers where logs end, every two seconds, in a thread of its own.

    A broker that does not answer holds nothing up: `trouble` says so, and `ends` stay as they were.

    Args:
        arguments: the command's arguments.

    Raises:
        OptionError, CommandError: an option is wrong.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._raw = select_reading(read_arguments(arguments))
        read_kafka_options({**self._raw, "subscribe": "any"})
        self.ends: dict[Partition, int] = {}
        self.trouble = ""
        self._asked: frozenset[Partition] = frozenset()
        self._broker: Any = None
        self._is_asking = False

    @property
    def answer(self) -> object:
        """The last answer of the brokers, to compare with an earlier one."""
        return self.ends, self.trouble

    def watch(self, partitions: Sequence[Partition]) -> None:
        """Ask for these partitions as well, from now on."""
        self._asked |= frozenset(partitions)
        if not self._is_asking:
            self._is_asking = True
            Thread(target=self._ask_on, name="timestream-ends", daemon=True).start()

    def read_case(self, case: Case) -> CaseRecords:
        """Read the records of a case."""
        return read_case(case, self._raw)

    def ask(self, partitions: Sequence[Partition]) -> None:
        """Ask once, now; `trouble` says what goes wrong."""
        from pyspark_timestream.kafka.client.broker import Broker

        try:
            if self._broker is None:
                topics = ",".join(sorted({partition.topic for partition in partitions}))
                options = read_kafka_options({**self._raw, "subscribe": topics})
                self._broker = Broker(options, _GROUP)
            self.ends = {**self.ends, **self._broker.ends(partitions)}
            self.trouble = ""
        except (OptionError, TimestreamError, OSError) as error:
            self.trouble = f"what waits is as of earlier: {error}"

    def _ask_on(self) -> None:
        while True:
            self.ask(sorted(self._asked))
            time.sleep(_ASK_S)


# -- text and JSON ---------------------------------------------------------------------------------


def format_text(
    views: Sequence[QueryView], now_us: int, width: int, stores: Sequence[ChainStore] = ()
) -> list[str]:
    """Return the lines that a terminal shows."""
    lines = [cut_text(f"Time of queries at {format_instant(now_us)}", width)]
    chain = build_chain(views, stores)
    if chain is not None:
        lines += [
            "",
            *(line for hop in chain.hops for line in _wrap(hop.describe(), width)),
        ]
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
    for operator in view.state:
        yield from _wrap(f"state of {describe_operator(operator)}", width)


def _describe_stream(stream: StreamView, now_us: int, width: int) -> Iterator[str]:
    explanation = stream.explanation
    yield ""
    yield cut_text(escape_controls(", ".join(explanation.topics) or "no topic"), width)
    cti = f"CTI {format_time(explanation.cti_us)}"
    if explanation.cti_us is not None and not stream.is_final:
        behind_us = now_us - explanation.cti_us
        side = "behind" if behind_us >= 0 else "ahead of"
        cti += f", {shorten_duration(abs(behind_us))} {side} the wall clock"
    yield from _wrap(cti, width)
    for line in describe_changes(explanation):
        yield from _wrap(line, width)
    diagnosis = explanation.diagnoses[0]
    yield from _wrap(
        f"=> {diagnosis.kind}: {diagnosis.cause}. {begin_sentence(diagnosis.full_text)}.", width
    )
    yield from (f"   {line}" for line in _wrap(f"Fix: {diagnosis.fix}.", width - 3))
    if len(explanation.diagnoses) > 1:
        others = format_count(len(explanation.diagnoses) - 1, "more finding")
        yield from _wrap(f"and {others}: explain has them", width)
    yield from _wrap(", ".join(f"{stream.counts[name]:,} {name}" for name in SHOWN_COUNTERS), width)
    yield from _describe_partitions(stream, width)


def _describe_partitions(stream: StreamView, width: int) -> Iterator[str]:
    facts = rank_partitions(stream.explanation.partitions)
    is_one = len(stream.explanation.topics) == 1
    rows = [["", "partition", "behind", "waiting", "remarks", "CTI"]]
    for fact in facts[:_MAX_TEXT_LANES]:
        waiting = stream.waiting.get(fact.partition, fact.lag)
        rows.append(
            [
                "*" if fact.is_cause else "",
                _name_partition(fact.partition, width, is_one=is_one),
                "" if fact.behind_us is None else shorten_duration(fact.behind_us),
                "?" if waiting is None else f"{waiting:,}",
                ", ".join(list_remarks(fact)),
                format_time(fact.cti_us),
            ]
        )
    rows += [
        ["*", _name_partition(partition, width, is_one=is_one), "", "", "missing", ""]
        for partition in stream.missing[:_MAX_TEXT_LANES]
    ]
    yield from align_within(rows, width)
    if len(facts) > _MAX_TEXT_LANES:
        yield cut_text(f"... and {len(facts) - _MAX_TEXT_LANES} more partitions", width)


def _name_partition(partition: Partition, width: int, *, is_one: bool) -> str:
    """Name a partition, with its number always in full; omit the only topic, which stands above."""
    if is_one:
        return str(partition.number)
    topic = escape_controls(partition.topic)
    room = max(width // 3 - len(str(partition.number)) - 1, 4)
    while cell_width(topic) > room:
        topic = f"…{topic.removeprefix('…')[1:]}"
    return f"{topic} {partition.number}"


def _wrap(text: str, width: int) -> list[str]:
    first_line, *others = wrap_text(escape_controls(text), max(width - 3, 1))
    return [first_line, *(f"   {line}" for line in others)]


def to_json(views: Sequence[QueryView], stores: Sequence[ChainStore] = ()) -> list[dict[str, Any]]:
    """Return the view as plain values; times are microseconds since 1970."""
    chain = build_chain(views, stores)
    hops = [
        [hop.source.kind, hop.source.name, hop.target.kind, hop.target.name, hop.behind_us]
        for hop in (() if chain is None else chain.hops)
    ]
    return [
        {
            "query": view.name,
            "status": view.status,
            "detail": view.detail,
            "changed_us": view.changed_us,
            "notes": list(view.notes),
            "streams": [_stream_to_json(stream) for stream in view.streams],
            "batches": [timing._asdict() for timing in view.triggers],
            "state": [_state_to_json(operator) for operator in view.state],
            "state_batch": view.state_batch,
            "hops": [hop for hop in hops if view.name in (hop[1], hop[3])],
        }
        for view in views
    ]


def _state_to_json(state: OperatorState) -> dict[str, Any]:
    return {
        "operator": state.operator,
        "rows": state.rows,
        "times": state.times,
        "is_window": state.is_window,
        "due": [list(time) for time in state.due],
    }


def _stream_to_json(stream: StreamView) -> dict[str, Any]:
    explanation = stream.explanation
    return {
        "topics": list(explanation.topics),
        "batch": explanation.batch,
        "cti_us": explanation.cti_us,
        "is_final": stream.is_final,
        "since_us": explanation.since_us,
        "findings": [
            {
                "kind": str(diagnosis.kind),
                "cause": diagnosis.cause,
                "text": diagnosis.full_text,
                "fix": diagnosis.fix,
            }
            for diagnosis in explanation.diagnoses
        ],
        "changes": [change.to_json() for change in explanation.changes],
        "waiting_change": explanation.waiting_change,
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
                "counters": fact.clock.counters(),
            }
            for fact in explanation.partitions
        ],
        "missing": [[partition.topic, partition.number] for partition in stream.missing],
    }
