"""What the other folders speak of: desired, recorded and observed state. Plain frozen records."""
