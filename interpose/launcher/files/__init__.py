"""The files of a rank: which ones it changed, and how they are saved and restored."""
