"""The steps of gpu_check and gpu_first: what they run in bash, and how long each may take."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

# What gpu_first runs: every layer once, and what tells most comes first.
FIRST = (
    *("machine", "env", "device_kernels", "train_kernels"),
    *("fp32_gpu1_stage0", "bf16_gpu1_stage0", "fp32_gpu1_stage3", "bf16_gpu1_stage3"),
    *("fp32_nccl2_stage0", "fp32_nccl2_stage3", "torch", "memory", "fp32_gpu2_stage2"),
    *("twice", "gpt2", "llama", "bandwidth", "comm", "memcheck_train"),
)

# Bounds of the relative difference of losses.
TIGHT = 1e-4  # fp32 that is summed in another order; stages beside each other
LOOSE = 5e-3  # activations in bf16, which CPUs have in fp32; TF32
LEAST = 1e-7  # of TF32 and fp32: the option changes something

ADAMW = {"optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
SETTINGS = {
    "fp32": ADAMW,
    "bf16": ADAMW | {"bf16": {"enabled": True}},
    "clipped": {  # AdamW would not show a gradient of the wrong scale
        "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
        "gradient_clipping": 0.5,
        "gradient_accumulation_steps": 2,
    },
}
REFERENCES = (("fp32", 1), ("bf16", 1), ("fp32", 2), ("bf16", 2), ("fp32", 4), ("clipped", 2))

# What the output of a failure has if the machine does not allow the step.
NO_TORCH = r"No module named '(torch|transformers)'|PyTorch sees no GPU"
NO_NCCL = "Duplicate GPU detected"
NO_WORKSPACE = "error: --attention_workspace"
NO_SANITIZER = "Device not supported|compute-sanitizer: command not found"

MACHINE = """nvidia-smi; nvidia-smi -q -d MEMORY,PERFORMANCE,CLOCK; nvidia-smi topo -m
nvidia-smi --query-gpu=pcie.link.gen.max,pcie.link.width.current --format=csv
uname -a; ldd --version | head -1; nproc; free -g; df -h . /tmp /dev/shm; ulimit -l
ip -brief address; ls -l /dev/nvidia*; PYTHON -c 'import importlib.metadata as packages, sys
print("Python", sys.version.split()[0], "PyTorch", packages.version("torch"))' || true"""

# NCCL refuses two ranks on one GPU of a host: each has a host name of its own. A rank that is to be
# killed is so after its program has begun to train.
NAMED_RANK = """bash -c 'export NCCL_HOSTID=rank-$RANK
[[ ${KILLED-} != $RANK ]] || { sleep 8; kill -9 $$; } &
exec "$@"' rank"""


@dataclass(frozen=True)
class Step:
    name: str
    limit: int  # seconds
    command: str
    shows: int = 1  # how many of the last lines of its output a report has
    refused: str = "(?!)"  # in the output of failures that do not count
    needs: Sequence[str] = ()  # steps that it is compared with

    @property
    def on_cpu(self) -> bool:
        return "_cpu" in self.name


class Table:
    """The steps of a machine by their names; `parts` are those of gpu_check, in its order."""

    def __init__(self, programs: str, python: str, logs: str) -> None:
        self.programs, self.python, self.logs = programs, python, logs
        self.configs: dict[str, str] = {}  # files that the steps read
        failures, models = "tests/gpu/failures_on_gpu.py", "tests/gpu/torch_on_gpu.py"
        memory = Step("memory", 45, f"{python} {failures} memory {programs}", 10, NO_TORCH)
        parts = {
            "device": self.device(),
            "nccl": self.nccl(f"{python} {failures} gather {programs}"),
            "memory": [memory],
            "trajectories": self.trajectories(),
            "offload": self.offload(),
            "torch": [Step("torch", 90, f"{python} {models} {programs}", 4, NO_TORCH)],
            "comm": self.comm(),
            "hf": self.hugging_face(),
            "figures": self.figures(),
            "sanitize": self.sanitize(),
        }
        self.parts = {part: [step.name for step in steps] for part, steps in parts.items()}
        every = [self.training(setting, "cpu", ranks, 0) for setting, ranks in REFERENCES]
        self.steps = {step.name: step for steps in [every, *parts.values()] for step in steps}

    # --- suites ---

    def suite(self, program: str, selected: str = "*") -> str:
        return f"{self.programs}/tests/{program} --gtest_brief=1 --gtest_filter='{selected}'"

    def device(self) -> list[Step]:
        # The variables that `zerorun env` explains after an empty line are left out.
        env = f"set -o pipefail; {self.programs}/bin/zerorun env | sed '/^$/,$d'"
        return [
            Step("machine", 20, MACHINE.replace("PYTHON", self.python)),
            Step("env", 20, env, shows=20),
            Step("device_kernels", 60, self.suite("test_gpu", "Devices/*")),
            Step("train_kernels", 100, self.suite("test_gpu_train")),  # cuDNN plans 56 graphs
        ]

    def comm(self) -> list[Step]:
        # Ranks that are threads share a context here, where they wait for each other: no stream may
        # queue behind another's wait, and no kernel may be loaded (which waits for all streams).
        variables = "CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER"
        return [Step("comm", 60, f"{variables} {self.suite('test_gpu', 'Transports/*')}")]

    def sanitize(self) -> list[Step]:
        suites = {  # without cuBLAS, all of whose kernels are loaded there, and cuDNN's planning
            "device": self.suite("test_gpu", "Devices/*Conformance*:-*Memory*:*Orthogonal*"),
            "train": self.suite("test_gpu_train", "*gpu_bf16:*Joins*fp32:-*Model*:*Joins*bf16"),
        }
        command = "compute-sanitizer --error-exitcode 9 --tool"
        return [
            Step(f"{tool}_{name}", limit, f"{command} {tool} {suite}", refused=NO_SANITIZER)
            for tool, limit in (("memcheck", 60), ("racecheck", 240))
            for name, suite in suites.items()
        ]

    # --- trainings: the same steps on CPU ranks and on the GPU, whose losses agree ---

    def config(self, setting: str, stage: int, name: str = "", **zero: object) -> str:
        path = f"{self.logs}/{name or setting}_stage{stage}.json"
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "zero_optimization": {"stage": stage, **zero},
        }
        self.configs[path] = json.dumps(config | SETTINGS[setting])
        return path

    def train(self, name: str, where: str, ranks: int, config: str, more: str = "") -> str:
        """On the CPU, or on a GPU that the ranks share without NCCL or through it."""
        share, train = "1", "train"
        if where == "nccl":
            share, train = "nccl", f"{NAMED_RANK} {self.programs}/libexec/zerorun/train"
        return (
            f"ZERORUN_SHARE_GPUS={share} NCCL_DEBUG=INFO {self.programs}/bin/zerorun "
            f"--accelerator {'cpu' if where == 'cpu' else 'cuda'} --num_gpus {ranks} {train} "
            f"--config {config} --data docs --metrics {self.logs}/{name}.jsonl "
            + (more or "--steps 20 --save ''")
        )

    def beside(self, name: str, other: str, *bounds: float) -> str:
        files = f"{self.logs}/{other}.jsonl {self.logs}/{name}.jsonl"
        return f"{self.python} tests/gpu/same_losses.py {files} {' '.join(map(str, bounds))}"

    def compared(self, name: str, train: str, others: dict[str, list[float]]) -> Step:
        """A training, and then its losses beside those of others."""
        losses = [self.beside(name, other, *bounds) for other, bounds in others.items()]
        refused = f"{NO_NCCL}|{NO_WORKSPACE}"
        limit = 40 if others else 100  # CPU ranks may have few cores
        return Step(name, limit, " && ".join([train, *losses]), len(losses), refused, list(others))

    def training(self, setting: str, where: str, ranks: int, stage: int) -> Step:
        name = f"{setting}_{where}{ranks}_stage{stage}"
        train = self.train(name, where, ranks, self.config(setting, stage))
        bound = LOOSE if setting == "bf16" else TIGHT
        reference = {} if where == "cpu" else {f"{setting}_cpu{ranks}_stage0": [bound]}
        return self.compared(name, train, reference)

    def every_stage(self, setting: str, ranks: int) -> list[Step]:
        """Beside the CPU, and beside each other."""
        steps = [self.training(setting, "gpu", ranks, stage) for stage in range(4)]
        first, *others = [step.name for step in steps]
        losses = " && ".join(self.beside(name, first, TIGHT) for name in others)
        return [*steps, Step(f"{setting}_gpu{ranks}_stages", 20, losses, 3, needs=[first, *others])]

    def trajectories(self) -> list[Step]:
        kinds = [(setting, ranks) for ranks in (1, 2) for setting in ("fp32", "bf16")]
        usual = "--steps 20 --save ''"
        tf32 = self.train("tf32", "gpu", 1, self.config("fp32", 0), f"{usual} --tf32")
        small = f"{usual} --attention_workspace 0"
        small = self.train("attention_workspace", "gpu", 1, self.config("bf16", 0), small)
        return [
            *(step for kind in kinds for step in self.every_stage(*kind)),
            self.compared("tf32", tf32, {"fp32_gpu1_stage0": [LOOSE, LEAST]}),
            self.compared("attention_workspace", small, {"bf16_cpu1_stage0": [LOOSE]}),
            self.training("clipped", "gpu", 2, 2),
            self.twice(),
        ]

    def twice(self) -> Step:
        """The same bits each time: losses, parameters, masters and states."""
        names, config = ("first", "again"), self.config("bf16", 3)
        saves = [f"{self.logs}/{name}" for name in names]
        trainings = [
            self.train(name, "gpu", 1, config, f"--steps 20 --save {save}")
            for name, save in zip(names, saves, strict=True)
        ]
        diff = f"{self.programs}/bin/zerorun ckpt diff {' '.join(saves)} | tee /dev/stderr"
        equal = f"{diff} | grep -q 'all values of all parameters are equal'"
        return Step("twice", 80, " && ".join([*trainings, self.beside("again", "first", 0), equal]))

    def offload(self) -> list[Step]:
        host = {"device": "cpu"}
        disk = {"device": "nvme", "nvme_path": os.path.abspath(f"{self.logs}/nvme")}
        places = {
            "states_on_host": {"offload_optimizer": host},
            "all_on_host": {"offload_optimizer": host, "offload_param": host},
            "states_on_disk": {"offload_optimizer": disk},
            "all_on_disk": {"offload_optimizer": disk, "offload_param": disk | {"max_in_cpu": 0}},
        }
        steps = []
        for name, zero in places.items():
            config = self.config("fp32", 3 if "offload_param" in zero else 2, name, **zero)
            train = self.train(name, "gpu", 1, config)
            steps.append(self.compared(name, train, {"fp32_cpu1_stage0": [TIGHT]}))
        return steps

    # --- NCCL ---

    def nccl(self, gather: str) -> list[Step]:
        kinds = [("fp32", "nccl", ranks, stage) for ranks in (2, 4) for stage in range(4)]
        endless = "--steps 100000 --save ''"
        killed = self.train("killed", "nccl", 2, self.config("fp32", 3), endless)
        killed = f"export KILLED=1; {killed}; [[ $? == 137 ]]"  # the status of rank 1 is the job's
        no_ranks = f"{NO_TORCH}|{NO_NCCL}"
        return [
            self.nccl_calls(1),
            *(self.training(*kind) for kind in kinds),
            Step("killed", 60, killed, refused=NO_NCCL),
            Step("gather", 60, f"NCCL_DEBUG=WARN {gather}", 2, no_ranks),
            self.nccl_calls(2),
        ]

    def nccl_calls(self, ranks: int) -> Step:
        """Microseconds of a call."""
        job = f"{self.programs}/bin/zerorun --accelerator cuda --num_gpus {ranks} {self.python}"
        command = f"ZERORUN_SHARE_GPUS=nccl NCCL_DEBUG=WARN {job} bench/gpu/nccl_calls.py"
        return Step(f"nccl_calls{ranks}", 45, command, 4, f"{NO_TORCH}|{NO_NCCL}")

    # --- figures ---

    def hugging_face(self) -> list[Step]:
        command = f"{self.python} bench/gpu/hf.py --build {self.programs}"
        first = f"--sides torch zerorun2 zerorun3 --rounds 4 --turns 1 --trace {self.logs}"
        return [
            Step("llama", 100, f"{command} {first}", 8, NO_TORCH),
            Step("llama_fsdp2", 480, command, 16, NO_TORCH),
        ]

    def figures(self) -> list[Step]:
        gpt2 = (
            f"{self.programs}/bench/train/bench_train --ranks 1 --accelerator cuda --dtype bf16 "
            "--vocabulary 50304 --model gpt2 --batch 16 --seq_len 1024 --stages 1 2 3 "
            "--threads $(nproc)"
        )
        peers = f"{self.python} bench/gpu/peers.py {self.programs}/bench/gpu/bench_gpu --part"
        parts = {
            "bandwidth": ("bandwidth", 60),
            "rate": ("rate", 180),
            "gpt2_xl": ("offload", 300),
            "wide": ("wide", 300),
        }
        return [
            Step("gpt2", 40, gpt2, 4),
            *(
                Step(name, limit, f"{peers} {part}", 60, NO_TORCH)
                for name, (part, limit) in parts.items()
            ),
        ]
