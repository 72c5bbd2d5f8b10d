"""What outlives a step: variables, queues, tables, accumulators."""
