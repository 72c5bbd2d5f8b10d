"""Many processes: tasks that run partitions, the master that cuts steps for them, the transport."""
