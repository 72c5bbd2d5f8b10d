"""Tests of the command `thalweg`."""
