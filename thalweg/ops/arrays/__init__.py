"""Elements moved, selected and joined; sorted, counted and summed by segment."""
