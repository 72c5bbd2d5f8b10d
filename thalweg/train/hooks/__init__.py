"""Hooks of monitored sessions: what runs before and after each step."""
