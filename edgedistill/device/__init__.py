"""A bundle goes in, one file comes out, which the core (export/core) reads on a device: numpy and tokenizers
alone write it. Also whether another tokenizer gives the bundle's token ids."""

from edgedistill.device import tokenizer_equality
from edgedistill.device.student_file import FILE, write

__all__ = ["FILE", "tokenizer_equality", "write"]
