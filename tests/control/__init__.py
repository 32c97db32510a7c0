"""Promise: whatever comes over a control socket, rankfold's processes go on; ranks stay out."""
