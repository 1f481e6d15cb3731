"""Who looks, and what they may: keys, sessions, and the headers that keep browsers from being used against them."""
