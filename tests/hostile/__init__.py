"""Clients that do not keep the channel's rules, and clients that die."""
