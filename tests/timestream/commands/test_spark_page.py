"""Spark's own page names a query, and of a Python source what it reports; the how-to lists it.

If Spark begins to name more, these tests are red, and the page on watching can say so.
"""

import json

import pytest

pytestmark = pytest.mark.spark

NAME = "clock to nowhere"


@pytest.fixture(scope="module")
def query(spark, tmp_path_factory):
    clock = spark.readStream.format("timestream").option("period", "0.01").option("maxCount", 3)
    writer = clock.load().writeStream.format("noop").queryName(NAME).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path_factory.mktemp("checkpoint")))
    started = writer.start()
    started.awaitTermination()
    return started


def test_a_source_is_a_class_to_sparks_page_and_named_by_what_it_reports(query):
    (source,) = json.loads(query.lastProgress.json)["sources"]
    assert ".python.PythonMicroBatchStream" in source["description"]
    assert {"cti", "endOfStream", "ticksBehind"} <= source["latestOffset"].keys()


def test_the_name_of_a_query_is_that_of_its_jobs_and_plans(spark, query):
    shown = spark._jsparkSession.sharedState().statusStore().executionsList()
    descriptions = [shown.apply(place).description() for place in range(shown.size())]
    assert any(text.startswith(NAME) for text in descriptions)
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    described = [jobs.apply(place).description() for place in range(jobs.size())]
    assert any(text.isDefined() and text.get().startswith(NAME) for text in described)
