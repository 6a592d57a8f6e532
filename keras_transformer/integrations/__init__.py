"""Other programs: their models, engines and clusters.

Nothing outside this package imports it."""
