"""What there is to see: the scheduler's calls, its last answers with their age, and the last hour of what changes."""
