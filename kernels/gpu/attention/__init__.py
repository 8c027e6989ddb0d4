"""Attention over the cache of keys and values.

For Triton only: `softmax`, `caches`. `attend` launches them.
"""
