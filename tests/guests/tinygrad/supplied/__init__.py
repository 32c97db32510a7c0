"""What tinygrad 0.12.0's test files import and its source package leaves out, in our own words."""
