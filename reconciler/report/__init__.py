"""What people and programs read: status, tables, logs."""
