"""Steps by readiness: token graphs, what is unfolded to them, and the executor."""
