"""Device types: one folder each."""
