"""The polyfleet command."""
