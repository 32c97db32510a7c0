"""What a rank and its proxy share means the same to the compiler, to Python and to people."""
