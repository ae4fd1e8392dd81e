"""Laws hold at any speed: an example has no deadline, which a busy machine would miss."""

from hypothesis import settings

settings.register_profile("at any speed", deadline=None)
settings.load_profile("at any speed")
