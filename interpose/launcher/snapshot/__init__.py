"""A snapshot of a rank: its folder, and the device memory that is copied while the rank runs."""
