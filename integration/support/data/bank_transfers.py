"""The bank of "Internal consistency in streaming systems" (2021): its transfers, and its job.

Transfers of 1 dollar between 10 accounts, in 60 seconds of a day, each reported up to 10 seconds
after it was made, so out of order; the numbers are our own (numpy, seed 42), in the post's shape.
The post asks for four views, and that no view ever shows an impossible total:

| the post's SQL | here |
| --- | --- |
| credits: sum of amounts by to_account | the same, by account and second |
| debits: sum of amounts by from_account | the same, from a second read of the topic |
| balance: credits - debits, joined on account | joined on account and second |
| total: sum of balances, always 0 | by second; a running sum over seconds is the post's |

Spark emits a row of an aggregation only once in append mode, so sums are by second, and what the
post calls a balance is the sum of an account's seconds up to now: all that has been emitted. Both
totals are 0 exactly if each second's is. The post joins inner; so do we, and each transfer counts 0
to the credits of its sender and to the debits of its receiver, so that no second of an account that
has only one of the two is missing (an outer join's column would have no watermark).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from broker import Broker, Record
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

ACCOUNTS: Final = 10
SECONDS: Final = 60
DISORDER_S: Final = 10
BEGIN_MS: Final = 1_609_459_200_000
"""2021-01-01T00:00:00Z."""

SCHEMA: Final = "from_account int, to_account int, amount long"
Integers = npt.NDArray[np.int64]


class Transfers(NamedTuple):
    """Columns in the order of arrival: second of the transfer, from whom, to whom, and where."""

    seconds: Integers
    senders: Integers
    receivers: Integers
    partitions: Integers

    @property
    def count(self) -> int:
        return len(self.seconds)


def transfers(count: int, partitions: int, lag_s: int = 0, seed: int = 42) -> Transfers:
    """Transfers of `SECONDS` seconds, each at most `DISORDER_S` seconds out of order.

    Args:
        count: how many.
        partitions: over how many partitions, by chance.
        lag_s: how many seconds later those of the last partition arrive.
        seed: of all chance.
    """
    random = np.random.default_rng(seed)
    seconds = np.arange(count) * SECONDS // count
    senders, receivers = random.integers(0, ACCOUNTS, (2, count))
    partition = random.integers(0, partitions, count)
    late = np.where(partition == partitions - 1, lag_s, 0)
    arrival = np.argsort(seconds + late + random.uniform(0, DISORDER_S, count), kind="stable")
    columns = (seconds, senders, receivers, partition)
    return Transfers(*(column[arrival] for column in columns))


def values(given: Transfers) -> Iterator[bytes]:
    """Each transfer as the post's JSON."""
    columns = (column.tolist() for column in given[:3])
    for number, (second, sender, receiver) in enumerate(zip(*columns, strict=True)):
        value = {
            "id": number,
            "from_account": sender,
            "to_account": receiver,
            "amount": 1,
            "ts": f"2021-01-01T00:00:{second:02}Z",
        }
        yield json.dumps(value).encode()


def records(given: Transfers) -> Iterator[Record]:
    """As they arrive; the records' timestamps are the transfers'."""
    for number, value in enumerate(values(given)):
        at_ms = BEGIN_MS + 1000 * int(given.seconds[number])
        yield Record(value, None, int(given.partitions[number]), at_ms)


def in_time(given: Transfers, delay_s: int) -> dict[int, int]:
    """Second -> transfers at most `delay_s` behind an earlier one of their partition."""
    newest: dict[int, int] = {}
    found: dict[int, int] = {}
    for second, partition in zip(given.seconds.tolist(), given.partitions.tolist(), strict=True):
        reached = newest.get(partition, second)
        if second >= reached - delay_s:
            found[second] = found.get(second, 0) + 1
        newest[partition] = max(reached, second)
    return found


# -- the job --------------------------------------------------------------------------------------


def by_ctis(spark: SparkSession, kafka: str, topic: str, delay_s: int, **more: str) -> DataFrame:
    """Transfers by our source, with CTIs; time is `ts`."""
    from pyspark_timestream import advance_time

    options = common(kafka, topic) | {"transport": "kafka", "valueFormat": "json"}
    options |= {"startTime": "ts", "ctiFrequency": "1", "ctiDelay": f"{delay_s} seconds", **more}
    schema = f"{SCHEMA}, start_time timestamp, cti timestamp"
    reader = spark.readStream.format("timestream").options(**options).schema(schema)
    return advance_time(reader.load()).withColumnRenamed("start_time", "ts")


def by_watermark(
    spark: SparkSession, kafka: str, topic: str, delay_s: int, **more: str
) -> DataFrame:
    """Transfers by Spark's own Kafka source, with its watermark."""
    options = common(kafka, topic) | more
    rows = spark.readStream.format("kafka").options(**options).load()
    parsed = F.from_json(F.col("value").cast("string"), f"{SCHEMA}, ts timestamp")
    return rows.select(parsed.alias("v")).select("v.*").withWatermark("ts", f"{delay_s} seconds")


def common(kafka: str, topic: str) -> dict[str, str]:
    """Options that both sources have."""
    return {
        "kafka.bootstrap.servers": kafka,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }


def balances(read: Callable[[], DataFrame]) -> DataFrame:
    """(account, second, credits, debits): a second's additions to an account's two sums."""
    credit = sums(read(), "to_account", "from_account", "credits")
    debit = sums(read(), "from_account", "to_account", "debits")
    return credit.join(debit, ["account", "second"])


def sums(rows: DataFrame, account: str, other: str, name: str) -> DataFrame:
    """The amounts by account and second; 0 for the other account."""
    amounts = (
        F.struct(F.col(account).alias("account"), F.col("amount").alias("part")),
        F.struct(F.col(other).alias("account"), F.lit(0).cast("long").alias("part")),
    )
    each = rows.select("ts", F.explode(F.array(*amounts)).alias("each")).select("ts", "each.*")
    second = F.window("ts", "1 second").alias("second")
    return each.groupBy("account", second).agg(F.sum("part").alias(name))


def totals(read: Callable[[], DataFrame]) -> DataFrame:
    """(timestamp, total, moved): the sum of all balances and of all credits, second by second."""
    balance = F.sum(F.col("credits") - F.col("debits")).alias("total")
    found = balances(read).groupBy("second").agg(balance, F.sum("credits").alias("moved"))
    return found.select(F.col("second.start").alias("timestamp"), "total", "moved")


def fill(kafka: Broker, given: Transfers) -> str:
    """A topic with the transfers."""
    topic = kafka.create_topic(None, int(given.partitions.max()) + 1)
    kafka.produce(topic, records(given))
    return topic
