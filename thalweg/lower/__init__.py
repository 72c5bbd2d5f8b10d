"""From nodes of a step to kernels: shapes made concrete, ops fused, memory planned."""
