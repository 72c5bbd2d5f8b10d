"""What nodes read and write besides their values, and the order that follows from it."""
