"""Promise: C, Python and the documents agree on the memory that a rank and its proxy share."""
