"""Exceptions."""


class DeprecatedException(Exception):  # noqa: N818 - DeepSpeed's name
    """For scripts that catch it."""
