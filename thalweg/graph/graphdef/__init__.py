"""Graphs as protocol buffers: attributes, nodes, functions and graphs, to and from."""
