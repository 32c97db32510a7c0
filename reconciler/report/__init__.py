"""Output for people and programs: status, tables, logs."""
