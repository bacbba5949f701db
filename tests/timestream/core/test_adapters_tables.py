"""The options of a table of Spark's catalog survive in its columns, and go nowhere else."""

import pytest
from pyspark.sql.types import StructType

from pyspark_timestream.core.adapters import (
    drop_options,
    keep_options,
    read_definition,
    restore_options,
)
from pyspark_timestream.errors import OptionError

SPARKS_OWN = {"provider": "toy", "owner": "me", "location": "file:/x", "p": "q", "comment": "c"}
COLUMNS = StructType().add("a", "string", True, {"comment": "kept"}).add("b", "long", False)
TABLE = {"path": "/x", "limit": "1"}


def test_definition_has_the_users_options_without_sparks_own():
    """As Spark 4.2 and 4.3 ask for the columns of a table."""
    asked = {**SPARKS_OWN, "option.Limit": "1", "Limit": "1", "path": "file:/x"}
    assert read_definition(asked, "view") == {"limit": "1", "path": "file:/x"}


def test_options_without_a_provider_are_no_definition():
    assert read_definition({"path": "/x", "limit": "1"}, "view") is None
    assert read_definition({}, "view") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("kafka.sasl.password", "hush"), ("path", "s3://me:hush@bucket"), ("x.token", "hush")],
)
def test_secret_in_a_definition_is_refused_without_its_value(name, value):
    with pytest.raises(OptionError, match=f"'{name}': it is a secret.*CREATE VIEW") as error:
        read_definition({**SPARKS_OWN, f"option.{name}": value}, "CREATE VIEW")
    assert "hush" not in str(error.value)


def test_kept_options_come_back_where_a_read_has_none():
    table = StructType.fromJson(keep_options(COLUMNS, TABLE, "toy").jsonValue())
    assert restore_options({}, table, "toy") == TABLE
    assert restore_options({"path": "/y"}, table, "toy") is None
    assert restore_options({}, table, "other") is None
    assert restore_options({}, COLUMNS, "toy") is None
    picked = StructType([table["b"], table["a"]])
    assert restore_options({}, picked, "toy") == TABLE


def test_dropped_options_leave_the_columns_as_they_were():
    assert drop_options(keep_options(COLUMNS, TABLE, "toy")) == COLUMNS
    assert drop_options(COLUMNS) == COLUMNS
