"""Type stubs of the public API, made from the registry of public names.

`public.install` builds the modules that users see when the package is imported, so an editor, which
reads and does not run, sees none of them. `python -m tools.stubs DIRECTORY` writes what it would
see: a module for each public module, with the signatures, docstrings and types of what is there.
"""
