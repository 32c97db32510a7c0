"""Transport between the proxies of a node."""
