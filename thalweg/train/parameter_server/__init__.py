"""Parameter servers: tables by key, from which workers pull values and to which they push updates.

A `ParameterServer` divides the keys of its tables into ranges and distributes them over devices. It
is all graph code on variables: the devices may be those of one process or of a cluster.
"""
