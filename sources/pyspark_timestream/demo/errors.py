"""The one error of the demo, whose sentence is all that its user sees."""

__all__ = ["NoDemo"]


class NoDemo(Exception):
    """The demo cannot run here; the text gives the reason and the next step."""
