"""PyTorch in ranks."""
