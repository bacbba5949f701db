"""Readers of `bench/neighbours` read the same records, as its figures promise."""

from __future__ import annotations

import zlib

import pytest
from broker import Broker
from kafka_records import START_MS, filled, values
from neighbours.__main__ import OfKafkarrow
from neighbours.kafkarrow_process import Kafkarrow, install
from neighbours.readers import READERS, Topic
from neighbours.runs import run_there, sums_there
from sessions import Apart

RECORDS, PARTITIONS = 40_000, 4


@pytest.fixture(scope="module")
def topic(broker: Broker) -> Topic:
    return Topic(broker.bootstrap, filled(broker, RECORDS, PARTITIONS), PARTITIONS, RECORDS)


def produced() -> dict[str, int]:
    made = list(values(0, RECORDS))
    keys = [b"%02d" % (number % 100) for number in range(RECORDS)]
    return {
        "records": RECORDS,
        "offsets": sum(number // PARTITIONS for number in range(RECORDS)),
        "timestamps": sum(START_MS + number for number in range(RECORDS)),
        "key_bytes": sum(map(len, keys)),
        "value_bytes": sum(map(len, made)),
        "keys": sum(map(zlib.crc32, keys)),
        "values": sum(map(zlib.crc32, made)),
    }


@pytest.mark.parametrize("name", [name for name in READERS if name != "without native"])
def test_every_reader_tallies_the_records_that_were_produced(topic: Topic, name: str) -> None:
    assert sums_there(name, topic) == produced()


def test_the_reader_without_native_tallies_the_same_in_its_process(topic: Topic) -> None:
    with Apart(TIMESTREAM_NATIVE="0") as apart:
        assert apart.call(sums_there, "without native", topic) == produced()
        done = apart.call(run_there, "without native", topic)
    assert done.work == {name: produced()[name] for name in done.work}
    assert len(done.work) == 5
    assert done.figures["core s"] > 0


@pytest.mark.soak
def test_kafkarrow_tallies_the_records_that_were_produced(topic: Topic) -> None:
    with Kafkarrow(install()) as process:
        contender = OfKafkarrow(process, topic)
        assert contender.sums() == produced()
        done = contender()
    assert done.work == {name: produced()[name] for name in done.work}
