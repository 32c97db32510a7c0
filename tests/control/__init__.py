"""Promise: whatever comes over a control socket, rankfold's processes continue; ranks stay out."""
