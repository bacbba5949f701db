"""Warnings have their level and time in the driver's log, unless somebody has set up logging."""

import logging
import re

import pytest

from pyspark_timestream.core.adapters import SparkFormatter, log_like_spark


@pytest.fixture
def package():
    logger = logging.getLogger("a_package_of_this_test")
    yield logger
    logger.handlers.clear()


def record(level):
    return logging.LogRecord("pyspark_timestream.x", level, "f", 1, "%s of %s", (3, 4), None)


@pytest.mark.parametrize(("level", "word"), [(logging.WARNING, "WARN"), (logging.ERROR, "ERROR")])
def test_a_line_has_the_form_of_sparks_own(level, word):
    line = SparkFormatter().format(record(level))
    assert re.fullmatch(
        rf"\d\d/\d\d/\d\d \d\d:\d\d:\d\d {word} pyspark_timestream\.x: 3 of 4", line
    )


def test_a_handler_is_added_once_and_only_where_nobody_has_set_up_logging(package, monkeypatch):
    assert logging.root.handlers
    log_like_spark(package.name)
    assert not package.handlers
    monkeypatch.setattr(logging.root, "handlers", [])
    log_like_spark(package.name)
    log_like_spark(package.name)
    assert len(package.handlers) == 1
