"""Loop kernels on a grid: the mapping of loops to threads, and emitters for each mapping."""
