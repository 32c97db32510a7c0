"""rankfold folds the ranks of a training job onto however many accelerators there are."""

__version__ = "0.1.0"
