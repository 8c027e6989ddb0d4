"""Decoder architectures: sizes, names and values for GGUF, metadata and tokenizer."""

from core.models.gguf_metadata import gguf_metadata
from core.models.gguf_tensors import MappedTensor, identity_tensors, map_tensors
from core.models.read_mapped import read_mapped
from core.models.read_shape import model_shape
from core.models.shape import ModelShape

__all__ = [
    "MappedTensor",
    "ModelShape",
    "gguf_metadata",
    "identity_tensors",
    "map_tensors",
    "model_shape",
    "read_mapped",
]
