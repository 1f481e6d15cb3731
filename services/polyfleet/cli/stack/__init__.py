"""What `polyfleet serve` starts: settings, processes, waiting until it answers."""
