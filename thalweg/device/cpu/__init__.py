"""The CPU: thread pool, step table and its interpreter, native programs."""
