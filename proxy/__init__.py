"""The device proxy: one process per device. Python decides; C handles every call of a rank."""
