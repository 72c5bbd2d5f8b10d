"""The systems that are compared: each module starts its runtime and makes a step of a work."""
