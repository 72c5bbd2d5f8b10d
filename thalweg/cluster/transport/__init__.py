"""The transport of a cluster: endpoints and peers, over ZeroMQ, TCP, Unix sockets and memory."""
