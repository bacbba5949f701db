"""The explicit schemas with which Arrow's parser reads fields by their paths.

Paths that share a parent become one struct, and a struct wanted as a column takes in the paths that
lead into it. Each read gives a name one type, so what contradicts an earlier field (another type,
or a path into what is wanted as a text) is read in another pass over the same values.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.kafka.options.paths import Path

__all__ = ["Place", "WireSchemas", "take_field"]

_Tree = dict[str, "_Tree | pa.DataType"]
"""The fields of an object by name; the types of those that are not objects themselves."""

_ALIKE: Final = (pa.string(), pa.int64())
"""Types that are read alike as a column and as a raw field."""


class Place(NamedTuple):
    """The place of a field in what was read.

    Attributes:
        read: the number of the read.
        path: the field's path.
        kind: the field's type; None for whatever its place has.
    """

    read: int
    path: Path
    kind: pa.DataType | None


@dataclass(slots=True)
class WireSchemas:
    """The reads that are needed; fields are added one by one."""

    _trees: list[_Tree]

    def __init__(self) -> None:
        self._trees = [{}]

    def add(self, path: Path, kind: pa.DataType) -> Place:
        """Add a field to the first read that it fits into."""
        node: _Tree | pa.DataType = _to_node(kind)
        for name in reversed(path):
            node = {name: node}
        assert isinstance(node, dict)
        for read, tree in enumerate(self._trees):
            if _fits(tree, node):
                _merge(tree, node)
                return Place(read, path, kind)
        self._trees.append(node)
        return Place(len(self._trees) - 1, path, kind)

    def find(self, path: Path) -> Place | None:
        """Find a field among those added whose values are read alike as a raw field."""
        for read, tree in enumerate(self._trees):
            node: _Tree | pa.DataType | None = tree
            for name in path:
                node = node.get(name) if isinstance(node, dict) else None
            if node is not None and not isinstance(node, dict) and node in _ALIKE:
                return Place(read, path, None)
        return None

    def schemas(self) -> list[pa.Schema]:
        """Return the explicit schema of each read."""
        return [
            pa.schema([(name, _to_type(node)) for name, node in tree.items()])
            for tree in self._trees
        ]


def take_field(tables: list[pa.Table], place: Place) -> pa.Array:
    """Take the field at `place` out of what was read; null where a parent is."""
    column = tables[place.read].column(place.path[0])
    if len(place.path) > 1:
        column = pc.struct_field(column, _find_indices(column.type, place.path[1:]))
    array = column.combine_chunks()
    return array if place.kind is None else _narrow(array, place.kind)


def _find_indices(kind: pa.DataType, path: Path) -> list[int]:
    indices = []
    for name in path:
        indices.append(kind.get_field_index(name))
        kind = kind.field(indices[-1]).type
    return indices


def _narrow(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Leave out the fields of structs that `kind` does not have."""
    if not pa.types.is_struct(kind) or array.type.equals(kind):
        return array
    parts = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    children = [_narrow(parts[field.name], field.type) for field in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def _to_node(kind: pa.DataType) -> _Tree | pa.DataType:
    if not pa.types.is_struct(kind):
        return kind
    tree: _Tree = {field.name: _to_node(field.type) for field in kind}
    # Names that are there twice, or none at all, leave nothing to lead a path to.
    return tree if len(tree) == kind.num_fields > 0 else kind


def _to_type(node: _Tree | pa.DataType) -> pa.DataType:
    if not isinstance(node, dict):
        return node
    return pa.struct([(name, _to_type(inner)) for name, inner in node.items()])


def _fits(tree: _Tree, added: _Tree) -> bool:
    for name, inner in added.items():
        node = tree.get(name)
        if isinstance(node, dict) and isinstance(inner, dict):
            if not _fits(node, inner):
                return False
        elif node is not None and (
            isinstance(node, dict) or isinstance(inner, dict) or node != inner
        ):
            return False
    return True


def _merge(tree: _Tree, added: _Tree) -> None:
    for name, inner in added.items():
        node = tree.get(name)
        if isinstance(node, dict) and isinstance(inner, dict):
            _merge(node, inner)
        else:
            tree[name] = inner
