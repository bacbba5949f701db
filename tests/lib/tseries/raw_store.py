"""Random stores, and everything ever delivered to them.

A delivery is a row that a receipt has acknowledged. Later events in the store (edits, acts of
erasure, a smaller range, compaction) change no delivery; `raw_oracle.py` asks DuckDB about them.
"""

import random
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import strategies as st
from tseries.builders import forget_stores, stored
from tseries.limits import set_limits
from tseries.store_model_queries import micros

from pyspark_timestream.core.processes import read_wall_clock
from pyspark_tseries import InvalidQuery, NoSuchEvent, OutOfOrder, TimeSeries
from pyspark_tseries.maintain import background
from pyspark_tseries.maintain.compactor import merge_file_groups
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.options import STORE_POLICIES
from pyspark_tseries.store.store import Store

NAMES = ["a", "b", "b/1", "", "\uffff", "\U00020bb7"]
"""Sorted by code points the last two are in this order, by UTF-16 they are not."""
VALUES = {"celsius": pa.float64(), "n": pa.int64(), "room": pa.string()}
ODD_DAYS = {
    "Europe/Berlin": [
        datetime(2026, 3, 28, 22, tzinfo=UTC),
        datetime(2026, 10, 24, 20, tzinfo=UTC),
    ],
    "America/New_York": [datetime(2026, 3, 8, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)],
    # By half an hour, and at midnight.
    "Australia/Lord_Howe": [datetime(2026, 4, 4, tzinfo=UTC), datetime(2026, 10, 3, tzinfo=UTC)],
    "Africa/Cairo": [datetime(2026, 4, 23, 12, tzinfo=UTC), datetime(2026, 10, 29, 9, tzinfo=UTC)],
}
"""Moments before the clocks of a zone are put forward, and back."""

RETAINED = ["unlimited", "limit 5", "limit 2", "limit 3 last 4H", "last 90M", "last 1D"]
SERIES = st.sampled_from(NAMES[:3] * 2 + NAMES[3:])
CELLS = st.fixed_dictionaries(
    {
        "celsius": st.none() | st.just(float("nan")) | st.integers(-80, 80).map(lambda e: e / 8),
        "n": st.none() | st.integers(-5, 5),
        "room": st.none() | st.sampled_from(["x", "y", ""]),
    }
)
MINUTES = st.sampled_from([0, 0, 1, 20, 40, 59, 60, 61, 200, 1500])
ROWS = st.lists(st.tuples(SERIES, MINUTES, st.booleans(), CELLS), min_size=1, max_size=8)
"""A series, how far its time moves on, whether the row comes late, and its values."""
POLICIES = st.sampled_from([*STORE_POLICIES, "adjust"])
EDITS = st.lists(st.tuples(SERIES, st.integers(0, 12), CELLS), min_size=1, max_size=4)
STEPS = st.one_of(
    *[st.tuples(st.just("append"), ROWS, POLICIES)] * 5,
    *[st.tuples(st.just("edit"), EDITS)] * 3,
    st.tuples(st.just("both"), ROWS, EDITS),
    st.tuples(st.just("together"), ROWS),
    st.tuples(st.just("erase"), SERIES, st.sets(st.integers(0, 9), min_size=1, max_size=3)),
    st.tuples(st.just("retain"), st.sampled_from(RETAINED)),
    *[st.tuples(st.just("remember"))] * 2,
    *[st.tuples(st.just("look"))] * 2,
    st.tuples(st.sampled_from(["compact", "merge", "vacuum", "optimize", "reopen"])),
)
PROGRAMS = st.lists(STEPS, min_size=2, max_size=12)


def from_us(us):
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


@dataclass(frozen=True)
class Moment:
    """A time between two commits.

    Attributes:
        us: the time.
        commit: the last commit before it.
        losses: how many steps before it may have lost an earlier past.
    """

    us: int
    commit: int
    losses: int


@dataclass
class RawStore:
    """A store, and what it was given.

    Attributes:
        path: where it is.
        begin: the time of its first events.
        retained: its retained range.
        keeps: True if compaction removes nothing that is younger than ten minutes.
        rows: the deliveries.
        hidden: rows hidden for good by a change of the range, or by an act after a compaction.
        moments: times to look back at.
    """

    path: str
    begin: datetime
    retained: str = "unlimited"
    keeps: bool = False
    rows: list = field(default_factory=list)
    hidden: set = field(default_factory=set)
    moments: list = field(default_factory=list)
    losses: int = 0
    commits: dict = field(default_factory=dict)

    def __post_init__(self):
        TimeSeries.create(
            self.path,
            VALUES,
            self.retained,
            "me",
            min_retention_age=None if self.keeps else timedelta(0),
            durability="os",
        )
        self.writers = [self.open("me"), self.open("you")]
        self.at, self.turn = self.begin, 0

    def open(self, author):
        return TimeSeries.open(self.path, author, auto_compact=False, durability="os")

    @property
    def client(self):
        """The writers take turns."""
        self.turn += 1
        return self.writers[self.turn % 2]

    def run(self, steps):
        for kind, *given in steps:
            getattr(self, kind)(*given)
        self.remember()
        return self

    # -- deliveries ------------------------------------------------------------------------------

    def _times(self, rows):
        given = []
        for name, minutes, late, cells in rows:
            self.at += timedelta(0) if late else timedelta(minutes=minutes)
            at = self.at - timedelta(minutes=minutes) if late else self.at
            given.append({"series": name, "timestamp": at, **cells, "edit_of": None})
        return given

    def _deliver(self, given, **policies):
        """Appends rows, and notes the acknowledged ones; returns whether any were."""
        writer = self.client
        schema = pa.schema(
            {"series": pa.string(), "timestamp": INSTANT, **VALUES, "edit_of": pa.int64()}
        )
        table = pa.Table.from_pylist(given, schema)
        before = self.commit()
        try:
            told = writer.append_many(table, max_future=timedelta.max, **policies).to_pylist()
        except (OutOfOrder, NoSuchEvent):
            assert self.commit() == before
            return
        for row, receipt in zip(given, told, strict=True):
            if receipt["sequence"] is not None:
                self._note({**row, **receipt})

    def _note(self, row):
        commit, at = self._commit_of(row["series"], row["sequence"])
        told = {"of": row.pop("edit_of"), "commit": commit, "commit_time": at}
        erased = dict.fromkeys(("erased_by", "erased_at", "erased_because"))
        self.rows.append({**row, **told, **erased})

    def _commit_of(self, name, sequence):
        """The commit of an event that was just added, as any reader of Delta sees it."""
        if (name, sequence) not in self.commits:
            for series, n, commit, us in stored(
                self.path, "series", "sequence", "commit", "commit_time"
            ):
                self.commits[series, n] = commit, from_us(us)
        return self.commits[name, sequence]

    def append(self, rows, late):
        self._deliver(self._times(rows), out_of_order=late)

    def edit(self, edits):
        for name, sequence, cells in edits:
            row = {"series": name, "timestamp": None, **cells, "edit_of": sequence}
            self._deliver([row], missing_original="fail")

    def both(self, rows, edits):
        """Events and edits of one batch; edits without an original are dropped."""
        changed = [
            {"series": name, "timestamp": None, **cells, "edit_of": n} for name, n, cells in edits
        ]
        self._deliver([*self._times(rows), *changed], out_of_order="drop", missing_original="drop")

    def together(self, rows):
        """Threads append single events at the same time."""
        given = [(name, cells) for name, _, _, cells in rows]
        told, writers = [None] * len(given), [self.client, self.client]

        def add(place):
            name, cells = given[place]
            writer = writers[place % 2]
            told[place] = writer.append(name, cells, self.at, max_future=timedelta.max)

        threads = [threading.Thread(target=add, args=(place,)) for place in range(len(given))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for (name, cells), event in zip(given, told, strict=True):
            receipt = {"sequence": event.sequence, "timestamp": event.timestamp}
            self._note(
                {"series": name, "author": event.author, "edit_of": None, **cells, **receipt}
            )

    # -- what becomes of them ----------------------------------------------------------------------

    def erase(self, name, sequences):
        """Erases values; rows that compaction had removed by then do not come back."""
        length = sum(row["series"] == name for row in self.rows)
        disk = {n for series, n in stored(self.path, "series", "sequence") if series == name}
        try:
            act = self.client.erase(name, sequences, "a test")
        except NoSuchEvent:
            assert max(sequences) >= length
            return
        if act is None:
            return
        for row in self.rows:
            if row["series"] == name and {row["sequence"], row["of"]} & sequences:
                row.update(celsius=None, n=None, room=None)
                if row["erased_by"] is None:
                    row.update(erased_by=act.principal, erased_because=act.reason)
                    row["erased_at"] = datetime.fromisoformat(act.time)
        originals = [r for r in self.rows if r["series"] == name and r["of"] is None]
        left = [r["sequence"] for r in originals if r["erased_by"] is None]
        gone = set(range(length)) - disk
        gone |= {n for n in left[-1:] if (name, n) in self.hidden}
        self.hidden |= {(name, n) for n in range(max(gone, default=-1) + 1)}
        self.losses += 1

    def retain(self, retained):
        from tseries.raw_oracle import Oracle

        if retained != self.retained:
            with Oracle(self) as oracle:
                names, numbers = oracle.retained_keys()
            everything = {(row["series"], row["sequence"]) for row in self.rows}
            self.hidden |= everything - set(zip(names, numbers, strict=True))
            self.losses += 1
        self.client.set_retained_range(retained)
        self.retained = retained

    def compact(self):
        self.client.compact()
        self.losses += not self.keeps

    def merge(self):
        with pytest.MonkeyPatch.context() as few:
            set_limits(few, groups_to_merge=2)
            merge_file_groups(Store.open(self.path), read_wall_clock(), everything=False)
        self.losses += not self.keeps

    def vacuum(self):
        """Maintenance of two hours later, which removes all files that no commit has any more."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(background, "REMOVED_FILE_RETENTION_HOURS", 0)
            later_us = read_wall_clock() + 7_200_000_000
            set_limits(patch, kept_small_files=0)
            background.remove_obsolete_files(Store.open(self.path), later_us)

    def optimize(self):
        """Another tool merges files."""
        DeltaTable(self.path).optimize.compact()

    def reopen(self):
        forget_stores()
        self.writers = [self.open("me"), self.open("you")]

    def remember(self):
        time.sleep(0.001)
        now_us = micros(datetime.now(UTC))
        self.moments.append(Moment(now_us, self.commit(), self.losses))
        time.sleep(0.001)

    def look(self):
        """Asks, so that the client keeps some state of this commit."""
        client = self.client
        client.latest(count=2)
        client.latest("a")
        client.range_query().every("1 hour").aggregate(n="sum").select_from()
        client.sql("SELECT count(*) FROM events").fetchall()

    # -- what is there -----------------------------------------------------------------------------

    def commit(self):
        return Store.open(self.path).snapshot().metadata.commit

    def disk(self):
        """The keys of the stored events, as any reader of Delta sees them."""
        return stored(self.path, "series", "sequence")

    def past(self, moment, chance):
        """The store as of a moment, by its time or its commit; None if it is gone."""
        by = moment.commit
        if moment.commit < 0 or chance.random() < 0.5:
            by = from_us(moment.us)
        try:
            return self.client.as_of(by)
        except InvalidQuery as error:
            is_lost = moment.losses < self.losses
            if "may be gone" not in str(error) or not is_lost:
                raise
            return None


def some_store(path, steps, chance: random.Random) -> RawStore:
    """A store after `steps`, that begins before an odd day of some zone."""
    zone = chance.choice(sorted(ODD_DAYS))
    begin = chance.choice(ODD_DAYS[zone])
    store = RawStore(str(path), begin, chance.choice(RETAINED), chance.random() < 0.4)
    return store.run(steps)
