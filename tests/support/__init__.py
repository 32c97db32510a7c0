"""Code that the tests of several concepts share."""
