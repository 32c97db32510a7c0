"""Observed state: the answers of proxies and launchers, and what follows from them."""
