"""Graph execution: sessions, plans, the executors, resources and configuration."""

from thalweg.platform.memory import keep_freed_memory
from thalweg.runtime import config, session
from thalweg.runtime.dataflow import exported

__all__ = ["config", "exported", "session"]

keep_freed_memory()
