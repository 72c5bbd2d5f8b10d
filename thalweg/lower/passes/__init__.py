"""Passes over loop nests: fusion, rematerialisation, concatenation in place, order."""
