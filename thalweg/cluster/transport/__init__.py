"""How processes talk: endpoints and their peers, over ZeroMQ and, within a host, shared memory."""
