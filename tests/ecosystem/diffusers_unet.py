"""A UNet of diffusers that is made under `zero.Init` and learns to predict noise."""

from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from diffusers import DDPMScheduler, UNet2DModel
from program import Figures, trained, trained_config


def figures(given: Any) -> Figures:
    config = trained_config(given, lr=1e-3)
    torch.manual_seed(0)
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=given.stage == 3):
        unet = UNet2DModel(
            sample_size=8,
            layers_per_block=1,
            block_out_channels=(8, 16),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            norm_num_groups=4,
            attention_head_dim=4,
        )
    noising = DDPMScheduler(num_train_timesteps=100)
    engine, *_ = deepspeed.initialize(model=unet, model_parameters=unet.parameters(), config=config)
    random = torch.Generator().manual_seed(1 + dist.get_rank())
    dtype = torch.bfloat16 if given.bf16 else torch.float32

    def loss() -> torch.Tensor:
        images, noise = torch.randn(2, 2, 3, 8, 8, generator=random)
        times = torch.randint(0, 100, (2,), generator=random)
        noisy = noising.add_noise(images.cumsum(-1), noise, times)
        return torch.nn.functional.mse_loss(engine(noisy.to(dtype), times).sample.float(), noise)

    return trained(engine, 8, loss)
