"""Other people's formats, each an optional extra."""
