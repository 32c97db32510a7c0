"""Promise: what is said to race does, and what races is said to, in any program."""
