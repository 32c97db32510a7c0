"""cuDNN as PyTorch calls it."""
