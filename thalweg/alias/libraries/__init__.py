"""Packages of other people that were a part of TensorFlow, and where programs find them.

They import `tensorflow` themselves, so the alias must be on: it is turned on when one of them is
first asked for, where no TensorFlow is installed. What later Pythons and NumPys broke in them is
mended when they are imported: the file of a library lists each patch with its reason.
"""
