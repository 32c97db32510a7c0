"""What a checkpoint holds comes back as it was, or is said to be damaged; nothing removes what a
save or restore needs."""
