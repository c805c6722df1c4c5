#!/usr/bin/env python3
"""Writes data/elasticity.json: batches that DeepSpeed's own compute_elastic_config gives.

    python tests/config/make_elasticity.py > tests/config/data/elasticity.json

Needs DeepSpeed 0.19.7 or one before it: later ones have no elasticity.
"""

import json
import logging
import random

import deepspeed
from deepspeed.elasticity import compute_elastic_config
from deepspeed.elasticity.config import ElasticityIncompatibleWorldSize

CASES = 150


def section(rng: random.Random) -> dict[str, object]:
    sizes = [rng.randint(1, 24) for _ in range(rng.randint(1, 4))]
    made: dict[str, object] = {
        "enabled": True,
        "max_train_batch_size": max(sizes) * 8 + rng.randint(0, 2000),
        "micro_batch_sizes": sizes,
        "version": rng.choice([0.1, 0.2]),
    }
    if rng.random() < 0.5:
        made |= {"min_gpus": rng.choice([1, 2, 8]), "max_gpus": rng.choice([8, 64, 1024])}
    if made["version"] == 0.2:
        made["num_gpus_per_node"] = rng.choice([1, 2, 4, 8])
        if made["num_gpus_per_node"] != 1 and rng.random() < 0.4:
            made["model_parallel_size"] = 2
    if rng.random() < 0.5:
        made["prefer_larger_batch"] = rng.random() < 0.5
    return made


def case(rng: random.Random) -> dict[str, object]:
    keys, ranks = section(rng), rng.choice([rng.randint(1, 16), 8 * rng.randint(1, 8)])
    try:
        batch, sizes, micro = compute_elastic_config(
            {"elasticity": keys}, deepspeed.__version__, world_size=ranks
        )
    except ElasticityIncompatibleWorldSize:
        batch = 0
    if batch == 0:  # nothing fits below the limit
        return {"section": keys, "ranks": ranks}
    found = {"batch": int(batch), "world_sizes": [int(size) for size in sizes], "micro": int(micro)}
    return {"section": keys, "ranks": ranks} | found


def main() -> None:
    logging.disable(logging.CRITICAL)
    rng = random.Random(5)
    lines = [json.dumps(case(rng)) for _ in range(CASES)]
    print(f'{{"deepspeed": "{deepspeed.__version__}", "cases": [\n' + ",\n".join(lines) + "\n]}")


if __name__ == "__main__":
    main()
