"""The command `keras-transformer`."""
