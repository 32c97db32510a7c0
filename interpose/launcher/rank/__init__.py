"""A rank's processes: their sandbox, start and end, and the workers that act on them."""
