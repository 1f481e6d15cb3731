"""Several gateway processes behind one pair of ports: started, replaced, restarted, and their metrics summed."""
