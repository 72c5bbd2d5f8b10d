"""Conversion of graphs, nodes, attributes and functions to and from protocol buffers."""
