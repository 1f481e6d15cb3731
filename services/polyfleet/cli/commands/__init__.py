"""The commands of `polyfleet`, a module for each family."""
