"""What both ends of the wire must compute alike: requests, answers, limits, block hashes, ids. Pure Python."""
