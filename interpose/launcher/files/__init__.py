"""The files of a rank: which ones it changed, how they are saved and set back."""
