"""What callers share: quotas of each tenant, whose turn is next, and what each has used."""
