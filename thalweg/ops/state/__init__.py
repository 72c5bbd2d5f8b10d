"""State that outlives a step: variables, queues, tables, accumulators."""
