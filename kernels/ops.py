"""The public operations on arrays. One signature each; `kernels.dispatch` picks the implementation.

Blocks are GGML's: a row of K values becomes K / block · block_bytes bytes. Groups are runs along a row.
All float arrays are C-contiguous float32; other inputs are converted. No operation keeps a reference to its input.
"""
