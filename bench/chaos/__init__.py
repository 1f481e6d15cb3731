"""Faults of every kind under streams whose every token is checked: processes, networks and disks."""
