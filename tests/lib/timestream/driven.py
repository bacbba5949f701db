"""A driver over a broker that is told what to answer."""

from timestream.builders import at, options

from pyspark_timestream.core.checkpoint import INITIAL_OFFSET
from pyspark_timestream.errors import BrokerUnreachable
from pyspark_timestream.kafka.driver.driver import StreamDriver
from pyspark_timestream.kafka.offsets.offset import StreamOffset


class FakeBroker:
    """A broker of one topic; its log is a pair (first offset, end) a partition."""

    def __init__(self, **logs: tuple[int, int]) -> None:
        self.group = ""
        self.log = {at(int(name[1:])): bounds for name, bounds in logs.items()}
        self.topic_id = "first"
        self.open: set = set()
        """Partitions with an open transaction."""
        self.trouble_count = 0
        self.missing: list[int] = []
        """How often a partition is left out of the next listings, by number."""
        self.former_ends: list[int] = []
        """Ends that a former leader of partition 0 tells in the next answers."""

    def connect(self, options, group: str) -> "FakeBroker":
        self.group = group
        return self

    def partitions(self):
        hidden = {at(self.missing.pop(0))} if self.missing else set()
        return [part for part in self.log if part not in hidden]

    def earliest(self, partitions):
        return {part: self.log[part][0] for part in partitions if part in self.log}

    def ends(self, partitions):
        ends = {part: self.log[part][1] for part in partitions if part in self.log}
        return {**ends, at(0): self.former_ends.pop(0)} if self.former_ends else ends

    def offsets_at(self, instants_ms):
        assert not instants_ms
        return {}

    def committed_metadata(self, partitions):
        return {}

    def topic_ids(self, topics):
        return dict.fromkeys(topics, self.topic_id)

    def identify(self, partitions):
        return self.topic_ids({part.topic for part in partitions}), self.earliest(partitions)

    def open_transactions(self, partitions):
        return self.open & set(partitions)


def unreadable(options, group):
    """No records can be read in the driver."""
    raise BrokerUnreachable("there is nothing to read from")


class Driven:
    """A run over a fake broker; clocks do not matter, so no range is read again."""

    def __init__(self, broker: FakeBroker, **raw: str) -> None:
        self.now_s = 1_700_000_000.0
        self.driver = StreamDriver(
            options(**{"startingOffsets": "earliest", **raw}),
            broker.connect,
            lambda: int(self.now_s * 1e6),
            unreadable,
        )
        self.driver._end_states.restore = lambda options, offset, span: (
            offset.partitions[span.partition].clock
        )
        self.offset = INITIAL_OFFSET

    def plan(self, cap: int | None = None) -> dict[int, tuple[int, int]] | None:
        """The next batch's ranges; None where there is none."""
        self.driver._partition_cache.asked_at_s = float("-inf")
        planned = self.driver.plan(self.offset, cap)
        if planned == self.offset:
            return None
        self.offset = planned
        ranges = StreamOffset.from_json(planned).ranges()
        return {span.partition.number: (span.start_inclusive, span.end_exclusive)
                for span in ranges}  # fmt: skip
