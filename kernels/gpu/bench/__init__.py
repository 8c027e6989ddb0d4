"""`python -m kernels.gpu.bench` measures a card; `run` says how."""
