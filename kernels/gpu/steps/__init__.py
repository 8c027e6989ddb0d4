"""What lies between products: norms, rotary positions, gated activations, codes of activations.

For Triton only: `elementwise`. `apply` launches it.
"""
