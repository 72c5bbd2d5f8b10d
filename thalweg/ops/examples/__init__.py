"""Parsing of Example and SequenceExample messages."""
