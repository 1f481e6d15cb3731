"""A worker on a host that nobody can dial: it joins the fleet over a connection that the host dials."""
