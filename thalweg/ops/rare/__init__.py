"""Rarely used families: CTC, barriers, sets, fractional pooling, morphology, hashing."""
