"""What converting columns takes in both packages: nested columns, and the digits of decimals.

What happens to a value that does not fit is each package's own rule: a source makes it null
(semantics 13.13), a store refuses it (semantics 15.6).
"""

import sys
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def leave_out_pandas() -> None:
    """Let Arrow convert values without importing pandas; for processes that run only our code.

    At the first conversion Arrow imports pandas to ask whether the value is one of pandas' own,
    which takes a quarter of a second. If that import fails, Arrow goes on without pandas until a
    call needs it, such as `to_pandas`, and imports it then.
    """
    if "pandas" not in sys.modules:
        refusal = _PandasRefused()
        sys.meta_path.insert(0, refusal)
        try:
            pa.array([0])
        finally:
            sys.meta_path.remove(refusal)


class _PandasRefused:
    """A finder of modules that finds no pandas."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out", name=name)


def list_lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return how many items of each list `flatten()` returns: 0 for a null list."""
    lengths: npt.NDArray[np.int64] = pc.list_value_length(array).fill_null(0).to_numpy()
    return lengths


def build_nested(
    kind: pa.DataType,
    children: Sequence[pa.Array],
    lengths: npt.NDArray[np.int64] | None,
    nulls: pa.Array | None,
) -> pa.Array:
    """Return lists, maps or structs of type `kind`, null where `nulls` is true.

    `children` are the items of all lists in order, the keys and values of all maps, or the fields
    of the structs. `lengths` are the numbers of items; None for structs.
    """
    if lengths is None:
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    make = pa.ListArray.from_arrays if pa.types.is_list(kind) else pa.MapArray.from_arrays
    return make(offsets, *children, kind, mask=nulls)


MAX_DIGITS: Final = 38
"""The digits of a decimal column, which has 128 bits."""

MAX_WIDE_DIGITS: Final = 76
"""The digits of a decimal of 256 bits."""


def find_long_decimals(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return where `values` have more digits before the point than the decimals of type `kind`.

    Arrow's cast multiplies such a value until its bits run over, and returns another number.
    """
    greatest = Decimal((0, (9,) * kind.precision, -kind.scale))
    unit = Decimal(1).scaleb(-values.type.scale)
    bound = greatest.quantize(unit, ROUND_FLOOR, Context(prec=MAX_WIDE_DIGITS))
    return pc.greater(pc.abs(values), pa.scalar(bound, values.type))
