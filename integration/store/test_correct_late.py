"""Late flights correct the hours of a job whose `ctiDelay` is too small, under kills."""

from __future__ import annotations

from pathlib import Path

import correct_late_job as job
import pytest
from broker import Broker
from corrected_hours import AIRPORTS, expected_hours, in_force, late_flights, missing_flights
from flights import produce_flights
from harness import DeltaLog, InBatch, Job, run_killed
from lengths import choices, repetitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_tseries import TimeSeries
from pyspark_tseries.maintain.verify import verify

KILLS = repetitions(1, 4)
FLIGHTS = choices([3_000], [None])[0]
"""Three days and a half, or all of 2013."""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_corrected_hours_of_flights_equal_those_of_a_large_delay_under_kills(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic = produce_flights(broker, count=FLIGHTS)
    store, large, checkpoint = tmp_path / "small", tmp_path / "large", tmp_path / "corrections"
    for place, delay in ((store, job.SMALL_DELAY), (large, job.LARGE_DELAY)):
        rows = job.read_flights(spark, broker.bootstrap, topic, delay)
        job.write_hours(rows, place).awaitTermination()
    assert in_force(large) == expected_hours(FLIGHTS)
    assert missing_flights(store, FLIGHTS) == late_flights(FLIGHTS) > 100

    log = DeltaLog(store, "tseries:late:")
    arguments = [broker.bootstrap, topic, str(store), str(checkpoint)]
    killed = Job(Path(job.__file__), arguments, log=tmp_path / "log")
    result = run_killed(killed, InBatch(checkpoint, then=log.has_batch), kills=KILLS, timeout=800)
    assert (result.hits, result.exit_code) == (KILLS, 0)
    assert in_force(store) == in_force(large)
    assert verify(str(store)) == []
    edits = TimeSeries.open(store).range_query().for_edits().select_from(AIRPORTS[0]).to_arrow()
    authors = set(zip(edits["author"].to_pylist(), edits["reason"].to_pylist(), strict=True))
    assert ("correct_late", "late rows") in authors
    assert len(authors) == 2


@pytest.mark.timeout(300)
def test_corrections_by_another_delay_are_refused_before_anything_is_written(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic = produce_flights(broker, count=300)
    store, checkpoint = tmp_path / "s", tmp_path / "c"
    rows = job.read_flights(spark, broker.bootstrap, topic, job.SMALL_DELAY)
    job.write_hours(rows, store).awaitTermination()
    before = in_force(store)
    other = job.read_flights(spark, broker.bootstrap, topic, "1 hour")
    said = "option 'ctiDelay' is '1 hour' here, and '2 hours'"
    with pytest.raises(StreamingQueryException, match=said):
        job.correct(other, store, checkpoint).awaitTermination()
    assert in_force(store) == before
    job.correct(rows, store, tmp_path / "right").awaitTermination()
    assert in_force(store) == expected_hours(300)
