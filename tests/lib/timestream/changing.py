"""A query over logs in memory whose restarts may change its options: driver, offsets and tasks."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadMaxRows
from timestream.builders import INSTANT, at, block, micros, options, projection
from timestream.driven import FakeBroker

from pyspark_timestream.core.checkpoint import INITIAL_OFFSET
from pyspark_timestream.kafka.driver.driver import StreamDriver
from pyspark_timestream.kafka.offsets.offset import StreamOffset
from pyspark_timestream.kafka.reader import KafkaStreamReader, read_task

COLUMNS = (
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("violation", pa.string()),
    ("cti", INSTANT),
)


class Logs(FakeBroker):
    """A broker whose partitions have records (timestamp in ms, headers of text)."""

    def __init__(self, *topics: str) -> None:
        super().__init__()
        self.records = {at(0, topic): [] for topic in topics}

    def partitions(self):
        return [part for part in self.records if part.topic in self.topics]

    def connect(self, options, group):
        self.topics = options.subscribe
        return super().connect(options, group)

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
        records = self.records[part][start:end]
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
        self.reader._max_handed = -1
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
        return nullcontext(SimpleNamespace(read=self.logs.read, commit_state=lambda _: None))

    def offset(self, place: int = -1) -> StreamOffset:
        return StreamOffset.from_json(json.loads(self.offsets[place]))
