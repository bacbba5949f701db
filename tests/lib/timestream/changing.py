"""A query over logs in memory, with restarts that may change options: driver, offsets and tasks."""

import copy
import json
from contextlib import nullcontext
from types import SimpleNamespace

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadMaxRows
from timestream.builders import INSTANT, at, block, late_word, micros, options, projection
from timestream.driven import FakeBroker

from pyspark_timestream.core.checkpoint import INITIAL_OFFSET
from pyspark_timestream.core.policies import POLICIES
from pyspark_timestream.kafka.driver.driver import StreamDriver
from pyspark_timestream.kafka.offsets.offset import StreamOffset
from pyspark_timestream.kafka.reader import KafkaStreamReader, read_task

SECOND = 1_000_000

COLUMNS = (
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("violation", pa.string()),
    ("cti", INSTANT),
)


class Logs(FakeBroker):
    """A broker of partitions with records (timestamp in ms, headers of text)."""

    def __init__(self, *topics: str) -> None:
        super().__init__()
        self.records = {at(0, topic): [] for topic in topics}

    def partitions(self):
        return [part for part in self.records if part.topic in self.topics]

    def connect(self, options, group):
        # The imported topic has a connection of its own, to the same records.
        connection = copy.copy(self)
        connection.topics = options.subscribe
        return FakeBroker.connect(connection, options, group)

    @property
    def log(self):
        return {part: (0, len(records)) for part, records in self.records.items()}

    @log.setter
    def log(self, _):
        pass

    def earliest(self, partitions):
        return dict.fromkeys(partitions, 0)

    def high_watermarks(self, partitions):
        return self.ends(partitions)

    def read(self, span, _columns):
        part, start, end = span
        records = self.records.get(part, [])[start:end]
        if records:
            stamps, headers = zip(*records, strict=True)
            coded = [
                [{"key": name, "value": text.encode()} for name, text in each.items()]
                for each in headers
            ]
            values = [b"" for _ in records]
            yield block(*values, first=start, timestamps_ms=list(stamps), headers=coded)

    def create_reader(self, _options, _group):
        return SimpleNamespace(read=self.read, close=lambda: None)


class Changing:
    """A query, restarted at will; each batch's offset is kept as text, and its rows."""

    def __init__(self, logs: Logs, **raw: str) -> None:
        self.logs, self.now_us = logs, 1_700_000_000_000_000
        self.offsets = [json.dumps(INITIAL_OFFSET)]
        self.rows: list = []
        self.restart(**raw)

    def restart(self, **raw: str) -> None:
        given = options(**{"startingOffsets": "earliest", "changeFrom": "now", **raw})
        self.reader = KafkaStreamReader(given, projection(given, *COLUMNS))
        self.reader._handing.max_records = -1
        self.reader._driver = StreamDriver(
            given, self.logs.connect, lambda: self.now_us, self.logs.create_reader
        )
        self.reader._driver._partition_cache.asked_at_s = float("-inf")

    def batch(self, cap: int = 1_000) -> bool:
        """Plan and run a batch; False where there is nothing to do."""
        self.now_us += 2_000_000
        self.reader._driver._partition_cache.asked_at_s = float("-inf")
        start = json.loads(self.offsets[-1])
        planned = self.reader.latestOffset(start, ReadMaxRows(cap))
        if planned == start:
            return False
        self.offsets.append(json.dumps(planned))
        self.rows.append(self.run(-2, -1))
        return True

    def drain(self) -> None:
        while self.batch() or self.batch():
            pass

    def run(self, first: int, last: int) -> list:
        """The rows of the batches behind `first` up to `last`, as Spark asks for them."""
        start, end = json.loads(self.offsets[first]), json.loads(self.offsets[last])
        reader, found = self.reader, []
        for task in reader.partitions(start, end):
            batches = list(read_task(reader._options, reader._projection, task, acquire=self._lend))
            table = pa.Table.from_batches(batches, reader._projection.schema)
            ctis = micros(table["cti"].combine_chunks())
            rows = table.drop_columns(["cti"]).to_pylist()
            found += [
                tuple(row.values()) if cti is None else cti
                for row, cti in zip(rows, ctis, strict=True)
            ]
        return found

    def _lend(self, *_: object):
        return nullcontext(SimpleNamespace(read=self.logs.read, commit_clocks=lambda _: None))

    def offset(self, place: int = -1) -> StreamOffset:
        return StreamOffset.from_json(json.loads(self.offsets[place]))


def judge_points(segments):
    """Rows and CTIs of one partition, a record at a time, in seconds."""
    out, cti, count, base, frequency = [], None, 0, None, None
    for asked, times in segments:
        every, _, is_span = asked["ctiFrequency"].partition(" ")
        if asked["ctiFrequency"] != frequency:
            count, base, frequency = 0, None, asked["ctiFrequency"]
        for time, stamp in times:
            late = cti is not None and time < cti
            far = "maxFuture" in asked and time > stamp + int(asked["maxFuture"][0])
            policy = asked["violationPolicy"]
            early = "future" if far and POLICIES[policy].flags else None
            word = late_word(policy) if late else early
            if word or not late:
                out.append((word, time))
            if not far:
                count, base = count + 1, time if base is None else base
                if time - base >= int(every) if is_span else count == int(every):
                    count, base, due = 0, time, time - int(asked["ctiDelay"].split()[0])
                    if cti is None or due > cti:
                        cti = due
                        out.append(cti)
    return out


def put(logs, topic, times):
    logs.records[at(0, topic)] += [(stamp * 1000, {"t": str(time * 1000)}) for time, stamp in times]


def told(logs, rows, ctis):
    """Rows as the oracle has them; `ctis`: with those CTI rows that rise."""
    out, last = [], None
    for row in rows:
        if isinstance(row, tuple):
            topic, number, offset, violation = row
            out.append((violation, int(logs.records[at(number, topic)][offset][1]["t"]) // 1000))
        elif ctis and (last is None or row > last):
            last = row
            out.append(row // SECOND)
    return out


def judge_marks(segments):
    """Late or not, by place, for records (writer, mark, stamp), and the CTI at the end, in seconds.

    A segment is (writers, timeout, grace, records); writers are None without a header.
    """
    late, live, heard, clock, first, cti = [], {}, {}, None, None, None
    listed, before, grace_before = [], None, None

    def least():
        is_open = grace is None or (first is not None and clock - first >= grace)
        known = [] if cti is None else [cti]
        if is_open and live and None not in live.values():
            known.append(min(live.values()))
        return max(known, default=None)

    for writers, timeout, grace, records in segments:
        if writers is None:
            live, listed = {}, []
        else:
            was = live
            gone = {name for name in listed if name not in writers and live.get(name, 0) is None}
            live = {name: live[name] for name in live if name not in gone}
            live |= {name: live.get(name) for name in writers if name not in listed}
            listed = writers
        begins = grace is not None and grace_before is None
        is_timed, was_timed = (
            (timeout, grace) != (None, None),
            (before, grace_before) != (None, None),
        )
        clock = None if begins or is_timed != was_timed else clock
        first = None if begins or grace is None else first
        heard = {} if begins or (timeout is None) != (before is None) else heard
        if writers is not None and (gone & was.keys() or grace != grace_before):
            cti = least()
        before, grace_before = timeout, grace
        for writer, mark, stamp in records:
            clock = stamp if clock is None else max(clock, stamp)
            first = clock if first is None and grace is not None else first
            if timeout is not None:
                heard |= {name: clock for name in live if name not in heard}
                live = {name: live[name] for name in live if clock - heard[name] <= timeout}
                heard = {name: heard[name] for name in live}
            cti = least() if timeout is not None or grace is not None else cti
            late.append(cti is not None and stamp < cti)
            if writers is not None:
                live[writer] = max(mark, -1 if live.get(writer) is None else live[writer])
                heard[writer], cti = clock, least()
    return late, cti
