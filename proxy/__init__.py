"""The device proxy: one server process per device. Python decides, C carries the hot path."""
