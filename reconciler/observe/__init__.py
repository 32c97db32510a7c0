"""What the fleet does: answers of proxies and launchers, and what follows from them."""
