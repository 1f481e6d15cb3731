"""What client libraries make of a running stack."""
