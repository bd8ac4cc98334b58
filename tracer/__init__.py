"""Recording, as root: one start at a time into one trace file."""
