"""Which engine options suit this machine: templates and rules, what the user chose, how fast its devices are."""
