"""What several concepts' tests share."""
