"""Where device memory is given out: apart, alike in all ranks, and to the last chunk."""
