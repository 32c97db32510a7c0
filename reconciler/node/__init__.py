"""The machine on which ranks run: their launchers, files, cgroups and environment."""
