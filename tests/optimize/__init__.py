"""The optimiser: every rule held to its pattern, passes text in and text out, random graphs."""
