"""A bundle goes in, one file comes out, which the core (export/core) reads on a device: numpy and tokenizers
alone write it."""

from edgedistill.device.student_file import FILE, STUDENTS, content, write, write_page

__all__ = ["FILE", "STUDENTS", "content", "write", "write_page"]
