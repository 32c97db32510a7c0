"""Rules about the repository itself."""
