"""What a checkpoint holds comes back as it was, or is said to be damaged; nobody removes what
somebody counts on."""
