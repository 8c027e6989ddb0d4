"""Encoders that round to nearest, and GPTQ's updates.

For Triton only: `encoders`. `encode` launches them.
"""
