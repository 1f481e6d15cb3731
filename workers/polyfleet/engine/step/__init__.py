"""A step as a value: sequences, and the plan of a step as flat arrays that any executor runs."""
