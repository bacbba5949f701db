"""Paths of fields inside a message."""

__all__ = ["split_path"]


def split_path(name: str) -> list[str]:
    """Split a column's name into the names of the fields that lead to it.

    >>> split_path("flight.origin")
    ['flight', 'origin']
    """
    return name.split(".")
