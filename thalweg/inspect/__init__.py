"""Plans, profiles, traces and timelines of steps. No package below imports this one."""

from thalweg.inspect import session, timeline
from thalweg.public import publish_from

publish_from("thalweg.inspect.tuning", "tune")

__all__ = ["session", "timeline"]
