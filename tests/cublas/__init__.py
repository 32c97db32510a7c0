"""cuBLAS and cuBLASLt as programs call them."""
