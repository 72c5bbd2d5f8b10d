"""Strings, and numbers written as text or bytes."""
