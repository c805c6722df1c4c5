"""Figures of collectives that a program measures itself; those of training are log_summary's."""

from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from zerorun.metrics.printed import bandwidths_gbps, size_text

from deepspeed.utils.timer import trim_mean


class CommsLogger:
    """Collects latencies by operation and size."""

    def __init__(self) -> None:
        # By operation and size in bytes: count, latencies in ms, bandwidths in Gbit/s.
        self.comms_dict: dict[str, dict[int, list[Any]]] = {}
        self.verbose, self.debug, self.enabled = False, False, False
        self.prof_ops: list[str] = []
        self.prof_all = True

    def configure(self, comms_config: Any) -> None:
        self.enabled = comms_config.comms_logger_enabled
        if self.enabled:
            for name in ("verbose", "debug", "prof_ops", "prof_all"):
                setattr(self, name, getattr(comms_config.comms_logger, name))

    def start_profiling_comms(self) -> None:
        self.prof_all = True

    def stop_profiling_comms(self) -> None:
        self.prof_all = False

    def start_profiling_op(self, op_name_list: Iterable[str]) -> None:
        self.prof_ops = list({*self.prof_ops, *op_name_list})

    def stop_profiling_op(self, op_name_list: Iterable[str]) -> None:
        left_out = set(op_name_list)
        self.prof_ops = [op for op in self.prof_ops if op not in left_out]

    def append(self, raw_name: str, record_name: str, latency: float, msg_size: int) -> None:
        """One collective: of `msg_size` bytes, in `latency` ms."""
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        op = raw_name.removesuffix("_into_tensor").removesuffix("_tensor")
        nbytes = msg_size * ranks if op in {"all_gather", "reduce_scatter"} else msg_size
        figures = latency, *bandwidths_gbps(op, nbytes, latency, ranks)
        entry = self.comms_dict.setdefault(record_name, {}).setdefault(msg_size, [0, [], [], []])
        entry[0] += 1
        for values, value in zip(entry[1:], figures, strict=True):
            values.append(value)

    def get_raw_data(self) -> dict[str, dict[int, list[Any]]]:
        return self.comms_dict.copy()

    def has_data(self) -> bool:
        return bool(self.comms_dict)

    def reset_data(self) -> None:
        self.comms_dict.clear()

    def get_operation_names(self) -> list[str]:
        return list(self.comms_dict)

    def get_total_operations(self) -> int:
        return sum(entry[0] for sizes in self.comms_dict.values() for entry in sizes.values())

    def get_operation_summary(self, operation_name: str) -> dict[int, dict[str, Any]] | None:
        """Averages by size in bytes; None for an operation that was not seen."""
        sizes = self.comms_dict.get(operation_name)
        if sizes is None:
            return None
        return {
            size: {
                "count": count,
                "total_latency_ms": sum(latencies),
                "avg_latency_ms": trim_mean(latencies, 0.1),
                "tput_avg_gbps": trim_mean(rates, 0.1),
                "busbw_avg_gbps": trim_mean(buses, 0.1),
                "msg_size_bytes": size,
                "msg_size_str": size_text(size),
            }
            for size, (count, latencies, rates, buses) in sizes.items()
        }

    def log_all(
        self, print_log: bool = True, show_straggler: bool = False, return_dict: bool = False
    ) -> dict[str, Any] | None:
        """Prints or returns the averages of this rank. NotImplementedError for stragglers, of which
        deepspeed.comm.log_summary tells."""
        if show_straggler:
            raise NotImplementedError("show_straggler is of zerorun's own: comm.log_summary has it")
        found = {name: self.get_operation_summary(name) for name in self.comms_dict}
        for name, sizes in found.items() if print_log else ():
            for row in (sizes or {}).values():
                print(
                    f"{name} of {row['msg_size_str']}: {row['count']} times, "
                    f"{row['avg_latency_ms']:.2f} ms, {row['busbw_avg_gbps']:.2f} Gbit/s"
                )
        return {"summary": found, "straggler_analysis": None} if return_dict else None
