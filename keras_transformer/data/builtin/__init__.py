"""The built-in corpus: sentences that a grammar writes, no download."""
