"""Products of activations with packed weights, and of codes with codes.

For Triton only: `matmul`, `decoders`, `scaled_matmul`. `weight_only` and `scaled` launch them.
"""
