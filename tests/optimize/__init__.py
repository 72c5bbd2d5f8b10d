"""The optimiser: every rule on random graphs, passes by their text, random graphs."""
