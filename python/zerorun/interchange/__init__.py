"""Checkpoints and models of other programs: DeepSpeed's, Hugging Face's and PyTorch's.

`formats.open_training` finds out what a folder is and describes it as a :class:`Source`, whose
tensors stay on the disk; `filling` puts one into an engine. Nothing in here runs code that a file
names.
"""
