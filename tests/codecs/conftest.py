"""How long an example takes says nothing about a codec on a machine that does other work."""

from hypothesis import HealthCheck, settings

settings.register_profile("codecs", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("codecs")
