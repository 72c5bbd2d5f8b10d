"""LLVM: text, compilation, object files."""
