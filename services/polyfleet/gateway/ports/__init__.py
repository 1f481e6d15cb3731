"""The gateway's ports: who may be connected, sockets, certificates."""
