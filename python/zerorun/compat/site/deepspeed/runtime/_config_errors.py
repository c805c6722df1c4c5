"""The error of a configuration that cannot be."""

import contextlib
from collections.abc import Iterator

import zerorun


class DeepSpeedConfigError(zerorun.ConfigError, AssertionError):
    """zerorun's, which scripts may also catch as DeepSpeed's and as its assertions."""


@contextlib.contextmanager
def deepspeeds_errors() -> Iterator[None]:
    """Within, zerorun's ConfigError becomes DeepSpeed's."""
    try:
        yield
    except DeepSpeedConfigError:
        raise
    except zerorun.ConfigError as error:
        raise DeepSpeedConfigError(str(error)) from error
