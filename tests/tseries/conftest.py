"""Rules are checked by examples, not by the clock of a shared machine."""

from hypothesis import settings

settings.register_profile("tseries", deadline=None)
settings.load_profile("tseries")
