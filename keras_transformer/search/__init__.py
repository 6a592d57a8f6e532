"""Search for probable sequences, section 6.1, over any step function."""
