"""Models that others have trained, as runs of this package."""
