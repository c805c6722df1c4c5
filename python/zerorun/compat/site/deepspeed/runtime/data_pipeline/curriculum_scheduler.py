"""How hard the data of a step may be, for samplers of the program's own."""

import math
from collections.abc import Callable, Mapping
from typing import Any

_LISTS = ("difficulty", "max_step")
_RAMP = ("total_curriculum_step", "difficulty_step")
_NEEDED = {
    "fixed_discrete": _LISTS,
    "fixed_linear": _RAMP,
    "fixed_root": (*_RAMP, "root_degree"),
    "custom": (),
}


class CurriculumScheduler:
    """The difficulty by step; `state` is what a checkpoint keeps.

    `config` has min_difficulty, max_difficulty, schedule_type and schedule_config. fixed_linear and
    fixed_root rise from the one to the other in steps of difficulty_step; fixed_discrete takes the
    n-th difficulty up to the n-th max_step; custom asks set_custom_get_difficulty's function.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        for key in ("min_difficulty", "max_difficulty", "schedule_type"):
            if key not in config:
                raise AssertionError(f"curriculum learning: the configuration has no {key!r}")
        kind = config["schedule_type"]
        if kind not in _NEEDED:
            raise RuntimeError(
                f"curriculum learning: got schedule_type {kind!r}, expected {', '.join(_NEEDED)}"
            )
        settings = config.get("schedule_config", {})
        for key in _NEEDED[kind]:
            if key not in settings:
                raise AssertionError(f"curriculum learning: {kind} needs schedule_config.{key}")
        if kind == "fixed_discrete":
            levels, ends = (len(settings[key]) for key in _LISTS)
            if ends == 0 or levels != ends + 1:
                raise AssertionError(
                    f"curriculum learning: got {levels} difficulties and {ends} max_step, expected "
                    "one difficulty more, for the steps after the last"
                )
        self.state = {
            "min_difficulty": config["min_difficulty"],
            "max_difficulty": config["max_difficulty"],
            "current_difficulty": config["min_difficulty"],
            "schedule_type": kind,
        }
        if _NEEDED[kind]:
            self.state["schedule_config"] = settings
        self.custom_get_difficulty: Callable[[int], int] | None = None

    def set_custom_get_difficulty(self, schedule_function: Callable[[int], int]) -> None:
        self.custom_get_difficulty = schedule_function

    def get_difficulty(self, global_steps: int) -> int:
        """Of a step, whatever came before."""
        kind = self.state["schedule_type"]
        if kind == "custom":
            if self.custom_get_difficulty is None:
                raise RuntimeError("curriculum learning: call set_custom_get_difficulty first")
            return self.custom_get_difficulty(global_steps)
        if kind == "fixed_discrete":
            levels, ends = (self.state["schedule_config"][key] for key in _LISTS)
            passed = sum(global_steps > end for end in ends)
            return levels[passed]
        return self._on_the_ramp(global_steps)

    def _on_the_ramp(self, step: int) -> int:
        """A multiple of difficulty_step, from the first that min_difficulty allows."""
        settings = self.state["schedule_config"]
        total, multiple = (settings[key] for key in _RAMP)
        least, most = self.state["min_difficulty"], self.state["max_difficulty"]
        risen = (step / total) ** (1 / settings.get("root_degree", 1))
        reached = math.floor(least + risen * (most - least)) // multiple * multiple
        first = math.ceil(least / multiple) * multiple
        return min(max(reached, first), most)

    def update_difficulty(self, global_steps: int) -> int:
        """Of a step; once at the most it stays there."""
        state = self.state
        if state["current_difficulty"] < state["max_difficulty"]:
            state["current_difficulty"] = self.get_difficulty(global_steps)
        return state["current_difficulty"]
