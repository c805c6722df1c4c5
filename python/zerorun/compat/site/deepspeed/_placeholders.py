"""Placeholders for names of DeepSpeed that zerorun does not have."""

from typing import Any

from deepspeed._hints import hint_of


def message(name: str) -> str:
    """Why `name` fails, and what to use."""
    return (
        f"{name} is not part of zerorun, which stands in for DeepSpeed here: {hint_of(name)} "
        "(ZERORUN_COMPAT=0 runs the script with an installed DeepSpeed)"
    )


class AbsentAttributeError(AttributeError, NotImplementedError):
    """Raised for an attribute that DeepSpeed has and zerorun does not: hasattr tells the truth."""


class _Absent(type):
    """The class of a name that is not there: importable, subclassable, not usable."""

    def __call__(cls, *_args: Any, **_kwargs: Any) -> Any:
        absent = next(base for base in reversed(cls.__mro__) if isinstance(base, _Absent))
        raise NotImplementedError(message(f"{absent.__module__}.{absent.__qualname__}"))

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AbsentAttributeError(message(f"{cls.__module__}.{cls.__qualname__}.{name}"))

    def _refuse(cls, *_args: Any) -> Any:
        cls()

    __iter__ = __len__ = __getitem__ = __contains__ = __enter__ = __exit__ = _refuse


def placeholder(name: str) -> type:
    """A class that raises NotImplementedError when it is called or looked into."""
    module, _, last = name.rpartition(".")
    return _Absent(last, (), {"__module__": module})


def is_placeholder(value: object) -> bool:
    return isinstance(value, _Absent) or getattr(value, "_is_absent", False) is True


def absent_method(name: str) -> Any:
    """A method that raises NotImplementedError when it is called."""

    def method(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(message(name))

    method.__name__ = name.rpartition(".")[2]
    method.__qualname__ = name
    method._is_absent = True  # type: ignore[attr-defined]
    return method
