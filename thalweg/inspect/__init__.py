"""Plans, profiles, traces and timelines of steps; nothing below imports it."""

from thalweg.inspect import session, timeline, tuning

__all__ = ["session", "timeline", "tuning"]
