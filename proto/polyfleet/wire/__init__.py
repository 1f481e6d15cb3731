"""What both ends of the wire must compute alike: limits, sampling parameters, block hashes, ids. Pure Python."""
