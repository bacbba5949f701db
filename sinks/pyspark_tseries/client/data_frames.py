"""Results as data frames of pandas and Polars, without a value changed on the way."""

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pyspark_timestream.errors import compose_message

if TYPE_CHECKING:
    import pandas
    import polars

__all__ = ["to_pandas", "to_polars"]

_NULLABLE: Final = {
    pa.int8(): "Int8",
    pa.int16(): "Int16",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.bool_(): "boolean",
}
"""The pandas types that can hold a null beside whole numbers and Booleans."""


def to_pandas(table: pa.Table) -> "pandas.DataFrame":
    """The rows of `table` as a pandas frame; a column's type depends on no value in it.

    Integers and Booleans are nullable, nested columns are Arrow's (NumPy's would turn a list with
    a null into floats); the others are as pyarrow converts them.
    """
    import pandas

    def pandas_type(kind: pa.DataType) -> Any:
        if kind in _NULLABLE:
            return pandas.api.types.pandas_dtype(_NULLABLE[kind])
        return pandas.ArrowDtype(kind) if pa.types.is_nested(kind) else None

    frame: pandas.DataFrame = table.to_pandas(types_mapper=pandas_type)
    return frame


def to_polars(table: pa.Table) -> "polars.DataFrame":
    """The rows of `table` as a Polars frame.

    Raises:
        ModuleNotFoundError: Polars is not installed.
    """
    try:
        import polars
    except ModuleNotFoundError as error:
        if error.name != "polars":
            raise
        raise ModuleNotFoundError(
            compose_message(
                "to_polars() needs Polars, which is not installed", next_step="pip install polars"
            ),
            name="polars",
        ) from None
    frame = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame)
    return frame
