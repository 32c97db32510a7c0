"""A snapshot of a rank: its folder, and the copy of its device memory while the rank runs."""
