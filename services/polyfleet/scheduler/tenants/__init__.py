"""What callers share: leases of quotas for gateways, and what was used."""
