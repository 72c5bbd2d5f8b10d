"""Moving, selecting, joining, sorting and counting elements, and reductions by segment."""
