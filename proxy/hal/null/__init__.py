"""A device that runs no kernel: the smallest example of a HAL."""
