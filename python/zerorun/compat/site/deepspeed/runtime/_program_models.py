"""Configuration classes of programs' own, which are pydantic's models where it is installed."""

import functools
import importlib.util
from typing import Any

from deepspeed.utils.logging import logger


def _setting_of(field: Any, name: str, default: Any = None) -> Any:
    """What a program wrote about a field besides pydantic's own words."""
    extra = field.json_schema_extra
    return extra.get(name, default) if isinstance(extra, dict) else default


def _take_over(model: Any, old: str, field: Any) -> None:
    """Gives the value of a deprecated key to the key that came after it."""
    new = _setting_of(field, "new_param", "")
    hint = f" use {new} instead" if new else ""
    remark = _setting_of(field, "deprecated_msg", "")
    logger.warning("Config parameter %s is deprecated%s%s", old, hint, remark and f". {remark}")
    if not new or not _setting_of(field, "set_new_param", True):
        return
    value = _setting_of(field, "new_param_fn", lambda given: given)(getattr(model, old))
    *path, name = new.split(".")
    holder = functools.reduce(getattr, path, model)
    if name in holder.model_fields_set:
        raise AssertionError(
            f"Cannot provide deprecated parameter '{old}' and replacing parameter '{new}' together"
        )
    delattr(model, old)
    setattr(holder, name, value)


@functools.cache
def program_model() -> Any:
    """The base of programs' classes, None without pydantic.

    Pydantic is imported when a program derives a class, not with the package.
    """
    if importlib.util.find_spec("pydantic") is None:
        return None
    import pydantic

    class DeepSpeedConfigModel(pydantic.BaseModel):
        """Pydantic's model with DeepSpeed's rules: "auto" is the default, unknown keys are errors,
        and keys that were replaced hand their values on."""

        model_config = pydantic.ConfigDict(
            validate_default=True,
            validate_assignment=True,
            use_enum_values=True,
            populate_by_name=True,
            extra="forbid",
            arbitrary_types_allowed=True,
            protected_namespaces=(),
        )

        def __init__(self, strict: bool = False, **data: Any) -> None:
            given = data if strict else {k: v for k, v in data.items() if v != "auto"}
            super().__init__(**given)
            for name, field in type(self).model_fields.items():
                if name in self.model_fields_set and _setting_of(field, "deprecated", False):
                    _take_over(self, name, field)

    return DeepSpeedConfigModel
