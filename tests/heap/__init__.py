"""Promise: device memory is allocated with lasting buffers apart, equally in all ranks, and to the
last chunk."""
