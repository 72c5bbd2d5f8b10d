"""How a graph runs: sessions, plans, the executor, resources and configuration."""

from thalweg.runtime import config, session

__all__ = ["config", "session"]
