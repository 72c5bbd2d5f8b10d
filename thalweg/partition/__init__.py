"""Partitions a placed step by device and replaces the edges between devices by transfers."""
