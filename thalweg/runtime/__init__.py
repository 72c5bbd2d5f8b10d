"""How a graph runs: sessions, plans, the executor, resources and configuration."""

from thalweg.runtime import behaviour, config, session, timeline, tuning

__all__ = ["behaviour", "config", "session", "timeline", "tuning"]
