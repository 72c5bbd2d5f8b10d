"""How a graph runs: sessions, plans, the executor, resources and configuration."""

from thalweg.platform.memory import keep_freed_memory
from thalweg.runtime import behaviour, config, exported, lowerings, session, timeline, tuning

__all__ = ["behaviour", "config", "exported", "lowerings", "session", "timeline", "tuning"]

keep_freed_memory()
