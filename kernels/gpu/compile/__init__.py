"""`python -m kernels.gpu.compile` compiles for cards that need not be there; `report` says how."""
