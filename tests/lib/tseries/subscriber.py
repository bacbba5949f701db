"""A subscriber for tests, restarted before every batch."""

import json

from tseries.builders import VALUE

from pyspark_tseries.model.ranges import (
    DEFAULT_INITIAL,
    parse_range,
)
from pyspark_tseries.read.delivery import InitialEvents, Position, read_delivery
from pyspark_tseries.read.subscription import Subscription
from pyspark_tseries.store.store import Store


def make(path, retained="unlimited"):
    return Store.create(str(path), [VALUE], parse_range(retained), min_retention_us=0)


class Client:
    """A subscriber that is restarted before every batch."""

    def __init__(self, path, initial=DEFAULT_INITIAL, starts=None):
        self.path, self.initial = str(path), InitialEvents(initial, starts or {})
        self.position = Subscription(self.path, self.initial).find_start()
        self.got = []

    def poll(self, most=None):
        """The events of the next batch, None where there is none; read twice, as on a retry."""
        follows = Subscription(self.path, self.initial)
        end = follows.find_end(self.position, most)
        end = Position.from_json(json.loads(json.dumps(end.to_json(), sort_keys=True)))
        if end == self.position:
            return None
        rows = [rows_of(follows.plan_tasks(self.position, end)) for _ in range(2)]
        assert rows[0] == rows[1]
        self.position = end
        self.got += rows[0]
        return rows[0]

    def drain(self, most=None):
        while self.poll(most) is not None:
            pass
        return self.got


def rows_of(tasks):
    rows = []
    for task in tasks:
        for part in read_delivery(task):
            columns = (part[name].to_pylist() for name in ("series", "sequence"))
            rows += zip(*columns, strict=True)
    return rows
