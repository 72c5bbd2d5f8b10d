"""From dataset to dataset: map, batch, shuffle, window and the like."""
