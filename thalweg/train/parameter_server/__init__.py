"""Parameter servers: tables of keys that many workers pull values from and push gradients to.

A `ParameterServer` cuts the keys of its tables into ranges and spreads them over devices; all of it
is graph code on variables, so that the devices may be those of one process or of a cluster.
"""
