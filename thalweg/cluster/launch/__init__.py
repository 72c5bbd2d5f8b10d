"""Launchers for the tasks of a cluster: as local processes, or as Ray actors."""
