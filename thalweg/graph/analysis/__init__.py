"""Effects of nodes on state, and the execution order that follows from them."""
