"""Apache Beam: prepares corpora and translates files larger than a machine."""
