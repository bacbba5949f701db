"""A record passes few files of ours on its way from the broker to a row: someone has to read them.

`python -m pytest integration/kafka/test_files_of_a_record.py -rP` lists them.
"""

from collections.abc import Callable

from broker import Broker
from files_passed import files_passed
from kafka_query import event
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_timestream.core.checkpoint import INITIAL_OFFSET
from pyspark_timestream.kafka.reader import KafkaTransport

MOST_FILES = 19


def test_a_record_passes_few_files(broker: Broker, topic: Callable[..., str]) -> None:
    name = topic()
    broker.produce(name, [event(0)])
    raw = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": name,
        "startingOffsets": "earliest",
        "ctiFrequency": "1",
        # A task reads it; the driver's process would commit beside, with functions of other files.
        "maxDriverRecords": "0",
    }
    transport = KafkaTransport(raw)
    reader = transport.stream_reader(transport.schema())
    first = reader.latestOffset(INITIAL_OFFSET, ReadAllAvailable())
    for task in reader.partitions(INITIAL_OFFSET, first):
        list(reader.read(task))
    broker.produce(name, [event(1)])
    second = reader.latestOffset(first, ReadAllAvailable())
    (task,) = reader.partitions(first, second)
    with files_passed() as passed:
        rows = list(reader.read(task))
    print(*sorted(passed), sep="\n")
    assert sum(len(batch) for batch in rows) >= 1
    assert len(passed) <= MOST_FILES
