"""Reinforcement learning: a stage 3 policy acts through a full copy on every rank.

zerorun --num_gpus 2 rl_loop.py

The copy stands for an engine that generates (vLLM, SGLang): after each update it gets the
new weights, one whole tensor at a time, so that no rank ever holds the model twice.
"""

import torch
import zerorun
from torch import nn

ACTIONS, EPISODES, ROUNDS = 8, 64, 30


def policy() -> nn.Module:
    torch.manual_seed(0)  # the same on every rank
    return nn.Sequential(nn.Linear(ACTIONS, 32), nn.Tanh(), nn.Linear(32, ACTIONS))


model, actor = policy(), policy()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
engine = zerorun.shard(model, stage=3, optimizer=optimizer, clip=1.0)
rank, ranks = engine.communicator.rank, engine.communicator.world_size
actor.to(engine.device)
torch.manual_seed(rank + 1)  # other episodes on every rank
for round_ in range(ROUNDS):
    with torch.no_grad():  # act; the right action is the one that the observation shows
        seen = torch.randint(ACTIONS, (EPISODES,), device=engine.device)
        observation = nn.functional.one_hot(seen, ACTIONS).float()
        action = torch.distributions.Categorical(logits=actor(observation)).sample()
        reward = (action == seen).float()
    log_probability = torch.log_softmax(engine(observation), -1).gather(1, action[:, None])
    loss = -((reward - reward.mean()) * log_probability[:, 0]).mean()
    engine.backward(loss)
    engine.step()
    targets = dict(actor.named_parameters())
    for name, value in engine.iter_full_parameters():  # all ranks together
        targets[name].data.copy_(value)
    total = reward.mean().clone()
    engine.communicator.all_reduce(total)
    if rank == 0 and round_ % 10 == 9:
        print(f"round {round_ + 1} reward {total.item() / ranks:.3f}", flush=True)
