"""Settings of all tests."""

from hypothesis import settings

# A time limit for each example fails on a machine that does much else; pytest-timeout ends what hangs.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
