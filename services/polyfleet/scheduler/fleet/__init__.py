"""Who is in the fleet and how they are: registrations, reports, tokenizer assets, snapshots to whoever watches."""
