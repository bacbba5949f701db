"""Random programs for a store and its model: every step is carried out by both and compared.

Compared are every answer and every refusal, all three kinds of query with their ranges and limits,
the past, subscriptions, and the counters of `describe`.
"""

import contextlib
import random
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from deltalake import DeltaTable
from tseries.builders import forget_stores, stored
from tseries.store_model import Asked, Model, Refused, Row, Unclear
from tseries.store_model_queries import LONG_US, built, instant, micros, some_query
from tseries.subscriber import Client

from pyspark_tseries import InvalidQuery, NoSuchEvent, TimeSeries, UpdateFailed
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.maintain.repair import RepairResult, repair
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.ranges import RetainedRange, format_range
from pyspark_tseries.options import LEAVE_OUT_POLICIES, STORE_POLICIES
from pyspark_tseries.spark.source import DefaultSource
from pyspark_tseries.store.store import Store

NAMES = ["a", "b", "", "\U00020bb7\u91ce\u5bb6", "\U0010ffff", "z" * 70, "A\nb'\"%"]
REFUSALS = (UpdateFailed, NoSuchEvent, InvalidQuery)


def names(error):
    """The names that an error may be caught by."""
    return {kind.__name__ for kind in type(error).__mro__}


class Program:
    """One store and its model; every step is drawn from `seed`."""

    def __init__(self, path, seed, writers):
        self.path, self.chance, self.writers = path, random.Random(seed), writers
        self.names = self.chance.sample(NAMES, 3)
        self.keeps = seed % 4 == 3  # For ten minutes all that is out of range.
        self.model = self._new()
        self.subscribers = []
        self.moments = []
        self.is_rebuilt = False  # Then a head may not know counts.

    def _new(self):
        limit, last_us = self.range()
        durability = self.chance.choice(["fsync", "os"])
        self.series = TimeSeries.create(
            self.path,
            {"value": pa.float64()},
            format_range(RetainedRange(limit, last_us)),
            "me",
            min_retention_age=None if self.keeps else timedelta(0),
            durability=durability,
            auto_compact=False,
        )
        return Model(limit, last_us)

    def range(self):
        limit = self.chance.choice([None, None, 1, 2, 3, 5, 8, 20])
        last_us = self.chance.choice([None, None, 1000, 5000, 9000, 20_000, LONG_US])
        return limit, last_us

    def run(self, most, until):
        """Make this many steps, fewer if `until` comes before; return how many."""
        steps = [
            *[self.append] * 8,
            *[self.append_many] * 8,
            *[self.edit] * 6,
            *[self.erase] * 2,
            *[self.ask] * 10,
            *[self.subscribe, self.poll, self.poll, self.poll, self.check],
            *[self.compact, self.merge, self.change_range, self.rebuild, self.write_beside],
            *[self.optimize, self.reopen, self.look_back, self.remember, self.damage],
        ]
        done = 0
        while done < most and time.monotonic() < until:
            self.chance.choice(steps)()
            done += 1
        self.ask_all()
        self.compact()
        self.ask_all()
        self.check()
        self.repair()
        self.end_subscriptions()
        return done

    # -- writing ---------------------------------------------------------------------------------

    def name(self):
        return self.chance.choice(self.names)

    def some_us(self, name):
        """A time near the newest of a series, on the bounds of ranges too; None now and then."""
        newest_us = self.model.newest_original_us(name) or 1_000_000
        if self.chance.random() < 0.15:
            return None
        return newest_us + self.chance.choice([-2000, -1, 0, 1, *range(0, 7000, 1000)])

    def assigning(self, before_us, given):
        """Checks the times that the store has assigned, and tells the model."""

        def assigned(at, newest_us):
            least = max(before_us, newest_us or 0)
            us = given.get(at, least)  # A batch that is refused has no times.
            most = max(least, micros(datetime.now(UTC)))
            assert us == newest_us or least <= us <= most, (us, newest_us, least, most)
            return us

        return assigned

    def _write(self, rows, act, **policies):
        """Runs `act`, which returns (sequence, us) or None for each row, and compares."""
        before_us = min(micros(datetime.now(UTC)), self.last_commit_us() or 2**62)
        try:
            found, refused = act(), set()
        except REFUSALS as error:
            found, refused = [None] * len(rows), names(error)
        given = {at: pair[1] for at, pair in enumerate(found) if pair is not None}
        try:
            expected = self.model.append(rows, "me", self.assigning(before_us, given), **policies)
        except Refused as error:
            expected, wanted = [], error.names
        else:
            wanted = ()
        assert refused & set(wanted) or not (refused or wanted), (rows, refused, wanted)
        if refused:
            return
        self.model.commit_us[self.model.commits - 1] = self.last_commit_us()
        told = [pair and (pair[1].sequence, pair[1].us) for pair in expected]
        assert found == told, rows

    def last_commit_us(self):
        said = self.series.describe()["last_commit_time"]
        return said and micros(datetime.fromisoformat(said))

    def append(self):
        name = self.name()
        self.append_to(name, self.some_us(name))

    def append_to(self, name, us=None):
        value = self.chance.random()

        def act():
            event = self.series.append(name, value, None if us is None else instant(us))
            return [(event.sequence, micros(event.timestamp))]

        self._write([Row(name, us, value)], act)

    def target(self, name):
        there = len(self.model.series.get(name, []))
        return self.chance.choice([self.chance.randint(0, there + 1), max(there - 1, 0)])

    def edit(self):
        name, value = self.name(), self.chance.random()
        target = self.target(name)

        def act():
            event = self.series.edit(name, target, value)
            return [(event.sequence, micros(event.timestamp))]

        self._write([Row(name, None, value, target)], act)

    def erase(self):
        """Erases the values of some events, and of some that never existed or are gone by now."""
        name, asked = self.name(), {self.target(self.name()) for _ in range(2)}
        on_disk = {n for series, n in stored(self.path, "series", "sequence") if series == name}
        try:
            expected, refused = self.model.erase(name, asked, on_disk), ()
        except Refused as error:
            expected, refused = None, error.names
        try:
            act, why = self.series.erase(name, asked, "the program"), set()
        except REFUSALS as error:
            act, why = None, names(error)
        assert why & set(refused) or not (why or refused), (name, asked, why, refused)
        assert (act and (list(act.events), list(act.removed))) == expected, (name, asked)
        if expected is not None:
            there = {event.sequence for event in self.model.series[name] if event.erased}
            hidden = {key for key in self.model.hidden if key[0] == name}
            for _, past in self.moments:
                past.forget({(name, sequence) for sequence in there})
                past.hidden |= hidden

    def append_many(self):
        rows = []
        for _ in range(self.chance.randint(1, 8)):
            name, value = self.name(), self.chance.random()
            edit_of = self.target(name) if self.chance.random() < 0.25 else None
            us = None if edit_of is not None else self.some_us(name)
            rows.append(Row(name, us, value, edit_of))
        late = self.chance.choice(list(STORE_POLICIES))
        missing = self.chance.choice(list(LEAVE_OUT_POLICIES))
        clock = self.chance.choice(["wall", "event"])
        stamps = pa.array([row.us for row in rows], pa.int64()).cast(pa.timestamp("us", "UTC"))
        table = pa.table(
            {
                "series": [row.series for row in rows],
                "timestamp": stamps,
                "value": [row.value for row in rows],
                "edit_of": pa.array([row.edit_of for row in rows], pa.int64()),
            }
        )

        def act():
            told = self.series.append_many(
                table, out_of_order=late, missing_original=missing, clock=clock
            )
            us = told["timestamp"].cast(pa.int64()).to_pylist()
            pairs = zip(told["sequence"].to_pylist(), us, strict=True)
            return [None if sequence is None else (sequence, at) for sequence, at in pairs]

        self._write(rows, act, late=late, missing=missing, clock=clock)

    def write_beside(self):
        """Other processes write while this one looks after the store, and reads."""
        self.writers.begin(self.path, 6)
        for step in self.chance.choices([self.ask, self.merge, self.compact, self.verify], k=3):
            step()
        for name, sequence, us, value, author in sorted(self.writers.end()):
            there = len(self.model.series.get(name, []))
            assert sequence == there, (name, sequence, there)
            self.model.add(name, us, value, author)
            self.model.commits += 1

    # -- reading ---------------------------------------------------------------------------------

    def ask(self, name=None, asked=None):
        name, asked = name or self.name(), asked or some_query(self.chance)
        try:
            expected, selected = self.model.query(name, asked)
            refused = ()
        except Unclear:
            return
        except Refused as error:
            refused = error.names
        try:
            found = built(self.series.range_query(), asked).select_from(name)
        except REFUSALS as error:
            found, why = None, names(error)
        else:
            why = set()
        assert why & set(refused) or not (why or refused), (name, asked, why, refused)
        if found is None:
            return
        told = [
            (e.sequence, micros(e.timestamp), e.value, e.author, e.original and e.original.sequence)
            for e in found.events
        ]
        wanted = [
            (e.sequence, self.model.shown_us(name, e, asked.kind), e.value, e.author, e.original)
            for e in expected
        ]
        edited = [e.edit_timestamp and micros(e.edit_timestamp) for e in found.events]
        assert edited == [None if e.original is None else e.us for e in expected]
        assert told == wanted, (name, asked, told, wanted, self.model.series.get(name))
        assert (found.selected_count, found.is_complete) == (selected, selected == len(told))
        for event in found.events:
            if event.original is not None:
                original = self.model.series[name][event.original.sequence]
                assert micros(event.original.timestamp) == original.us
                assert event.original.author == original.author

    def ask_all(self):
        for name in [*self.names, "shared", "nobody"]:
            for kind in ("values", "allEdits", "latestEdits"):
                self.ask(name, Asked(kind))
            for _ in range(3):
                self.ask(name)
        self.ask_many()

    def ask_many(self):
        """Questions of all series at once: each series gets the answer of its own question."""
        chosen, count = [*self.names, "nobody"], self.chance.randint(1, 4)
        found = self.series.latest(chosen, count).events
        for name in chosen:
            with contextlib.suppress(Unclear):
                expected, _ = self.model.query(name, Asked("values", limit=count))
                told = [(e.sequence, e.value) for e in found if e.series == name]
                assert told == [(e.sequence, e.value) for e in expected], (name, count)
        query = self.series.range_query()
        alone = [query.select_from(name).to_arrow() for name in sorted(chosen)]
        assert query.select_from(chosen).to_arrow().equals(pa.concat_tables(alone))
        streamed = query.stream_from(chosen).read_all()
        assert streamed.equals(query.select_from(chosen).to_arrow())
        listed = {row["series"]: row for row in self.series.series().to_pylist()}
        assert list(listed) == sorted(self.model.series)
        for name, events in self.model.series.items():
            row, newest_us = listed[name], self.model.newest_original_us(name)
            if row["newest"] is None and newest_us is not None:
                # Those after it were erased once compaction had removed it (31.3).
                last = max(e.sequence for e in events if e.original is None and not e.erased)
                assert any(e.erased for e in events if e.original is None and e.sequence > last)
            else:
                assert row["newest"] == (None if newest_us is None else instant(newest_us))
            counts = row["first"], row["events"], row["edits"]
            if self.is_rebuilt and counts == (None, None, None):
                continue
            originals = [e for e in events if e.original is None]
            first = instant(min(e.us for e in originals))
            assert counts == (first, len(originals), len(events) - len(originals))

    def remember(self):
        """A moment between two commits, and the store as it is at it."""
        time.sleep(0.002)
        self.moments.append((micros(datetime.now(UTC)), self.model.copy()))
        time.sleep(0.002)

    def look_back(self):
        if not self.moments:
            return
        us, past = self.chance.choice(self.moments)
        kind = self.chance.choice(["values", "allEdits", "latestEdits"])
        asked = {"path": str(self.path), "asOf": instant(us).isoformat(), "query": kind}
        source = DefaultSource(asked)
        try:
            reader = source.reader(source.schema())
            rows = [
                row
                for partition in reader.partitions()
                for part in reader.read(partition)
                for row in zip(
                    *(part[name].to_pylist() for name in ("series", "sequence", "value")),
                    strict=True,
                )
            ]
        except InvalidQuery as error:
            if "may be gone; accepted:" not in str(error):
                raise
            return
        for name in past.series:
            try:
                expected = [(e.sequence, e.value) for e in past.query(name, Asked(kind))[0]]
            except Unclear:
                continue
            assert [row[1:] for row in rows if row[0] == name] == expected, (name, kind)

    # -- subscriptions ---------------------------------------------------------------------------

    def subscribe(self):
        limit, last_us = self.range()
        initial = RetainedRange(limit, last_us)
        try:
            expected = {
                (name, e.sequence)
                for name in self.model.series
                for e in self.model.initial(name, limit, last_us)
            }
        except Unclear:
            return
        client = Client(self.path, initial)
        start = {name: len(events) for name, events in self.model.series.items()}
        assert set(client.poll() or []) == expected, initial
        client.got.clear()
        self.subscribers.append((client, start))

    def poll(self):
        if self.subscribers:
            client, _ = self.chance.choice(self.subscribers)
            client.poll(self.chance.choice([None, 1, 3, 10]))

    def end_subscriptions(self):
        """Every event after the start came once, in order; removed ones are counted."""
        for client, start in self.subscribers:
            client.drain(self.chance.choice([None, 2]))
            wanted = {
                name: list(range(start.get(name, 0), len(events)))
                for name, events in self.model.series.items()
            }
            got = {name: [s for n, s in client.got if n == name] for name in wanted}
            missing = sum(map(len, wanted.values())) - sum(map(len, got.values()))
            for name, sequences in got.items():
                assert sequences == sorted(set(sequences) & set(wanted[name])), name
            assert client.position.missed == missing
            assert not (missing and self.keeps)

    # -- maintenance -------------------------------------------------------------------------------

    def change_range(self):
        limit, last_us = self.range()
        self.series.set_retained_range(format_range(RetainedRange(limit, last_us)))
        self.model.set_retained_range(limit, last_us)
        if self.chance.random() < 0.5:
            self.compact()
        for name in self.names:
            self.ask(name, Asked("allEdits"))

    def compact(self):
        compact(self.path)

    def merge(self):
        self.series.compact()

    def rebuild(self):
        self.is_rebuilt = True
        assert rebuild(str(self.path)) == len(self.model.series)

    def verify(self):
        assert verify(str(self.path)) == []

    def repair(self):
        assert repair(str(self.path)) == RepairResult()

    def optimize(self):
        table = DeltaTable(self.path)
        if self.chance.random() < 0.5:
            table.optimize.compact()
        elif self.model.series:
            table.optimize.z_order(["sequence"])

    def reopen(self):
        forget_stores()
        durability = self.chance.choice(["fsync", "os"])
        self.series = TimeSeries.open(self.path, "me", durability=durability, auto_compact=False)

    def damage(self):
        """A lost head, or rows that another tool has deleted: `repair` mends both."""
        self.is_rebuilt = True
        self.append_to("damaged")  # What only the last head says would be lost with it.
        if self.chance.random() < 0.5:
            head = Store.open(self.path).head_id()
            (self.path / "_tseries" / "head" / f"{head:016x}.arrow").unlink()
            forget_stores()
        else:
            DeltaTable(self.path).delete("series = 'damaged'")
        done = repair(str(self.path))
        assert done.mended
        assert done.left == ()
        self.reopen()

    def check(self):
        """The counters, and every invariant."""
        self.verify()
        said = self.series.describe()
        lengths = [len(events) for events in self.model.series.values()]
        assert (said["series"], said["events"]) == (len(lengths), sum(lengths))
        assert said["retained_range"] == format_range(
            RetainedRange(self.model.limit, self.model.last_us)
        )
        kept = sum(len(self.model.retained(name)) for name in self.model.series)
        assert kept <= said["stored_events"] <= sum(lengths)
        assert (said["dropped"], said["adjusted"]) == (self.model.dropped, self.model.adjusted)
