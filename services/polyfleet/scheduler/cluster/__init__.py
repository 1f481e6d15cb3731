"""The machines where launchers live: this machine's Ray or one that runs, nodes, and the scheduler's own actor."""
