"""Families that few programs use: CTC, barriers, sets, fractional pooling, morphology, hashing."""
