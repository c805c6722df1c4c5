"""Checkpoints and models of other programs: DeepSpeed's, Hugging Face's and PyTorch's.

`formats.open_source` describes a folder as a :class:`Source`, whose tensors stay on the disk;
`load_into_engine` puts one into an engine. Nothing in here runs code that a file names.
"""
