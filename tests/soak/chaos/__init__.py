"""A model trains on a cluster whose tasks are killed, paused and cut off: `make chaos`."""
