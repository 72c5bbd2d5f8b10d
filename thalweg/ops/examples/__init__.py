"""Example and SequenceExample messages, parsed."""
