"""The command `thalweg`: a file for each subcommand, and for each kind of file `inspect` knows.

A command says with `add` which arguments it takes and what runs it; `main` parses, dispatches and
turns whatever goes wrong into one line. Commands give `Report`s, which print as text or as JSON.
"""
