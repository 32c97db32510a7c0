"""Promise: equal versions are equal bytes, on every rank, whatever it did."""
