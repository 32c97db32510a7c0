"""The barrier: the proxies' own transition function under arbitrary interleavings."""
