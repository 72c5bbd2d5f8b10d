"""Training by many workers: where variables go, and how the workers' updates come together."""
