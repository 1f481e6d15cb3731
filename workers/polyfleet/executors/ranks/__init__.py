"""An executor in several processes, each a rank of one group on one host, which compute a model together."""
