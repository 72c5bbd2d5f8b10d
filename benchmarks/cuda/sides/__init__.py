"""The systems that are measured on a GPU: each makes a `Side` of a row."""
