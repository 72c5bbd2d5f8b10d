"""Cuts a placed step at device borders, with transfers in the place of the edges that are cut."""
