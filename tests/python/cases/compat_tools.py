"""What DeepSpeed's helpers beside the engine do: checkpointing, hosts, logs, tiles, sections."""

from cases.compat import *


def case_checkpointing_recomputes_with_the_same_random_numbers() -> None:
    checkpointing = deepspeed.checkpointing
    tracker = checkpointing.get_cuda_rng_tracker()
    kept = torch.get_rng_state()
    calls = []

    def layer(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(1)
        with tracker.fork():
            x = torch.nn.functional.dropout(x @ weight, 0.5)
        return torch.nn.functional.dropout(x, 0.5), weight

    def gradient(run) -> torch.Tensor:
        checkpointing.model_parallel_cuda_manual_seed(7)
        weight = torch.linspace(-1, 1, 64).view(8, 8).requires_grad_()
        out, _ = run(layer, torch.ones(4, 8, requires_grad=True), weight)
        out, _ = run(layer, out, weight)  # the states have gone on from there
        out.square().sum().backward()
        return weight.grad, tracker.get_states()["model-parallel-rng"]

    plain = gradient(lambda function, *args: function(*args))
    assert len(calls) == 2
    assert_same(gradient(checkpointing.checkpoint), plain)
    assert len(calls) == 2 + 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(torch.nn.Linear(8, 8))  # as RWKV's and Megatron's fused layers
    checkpointing.checkpoint(scripted, torch.ones(4, 8, requires_grad=True)).sum().backward()
    assert scripted.weight.grad.eq(4).all()
    settings = {"activation_checkpointing": {"cpu_checkpointing": True, "number_checkpoints": 2}}
    checkpointing.configure(None, deepspeed_config=settings, partition_activations=True)
    assert checkpointing.is_configured()
    assert_same(gradient(checkpointing.checkpoint), plain)
    kind, graph = type(deepspeed.get_accelerator()), torch.autograd.graph
    with (
        mock.patch.object(kind, "device_name", return_value="cuda"),
        mock.patch.object(graph, "save_on_cpu", return_value=graph.save_on_cpu()),
    ):
        value, named = torch.ones(2), torch.ones(2, requires_grad=True)
        for _ in range(2):
            value = checkpointing.checkpoint(lambda x, y: x * y, value, y=named * 2)
        value.sum().backward()
    assert named.grad.tolist() == [8, 8]
    outputs: list[torch.Tensor] = []
    checkpointing.CheckpointFunction.apply(lambda x: x * 2, outputs, torch.ones(2))
    assert outputs[0].tolist() == [2, 2]
    raises(ValueError, "no state other", lambda: tracker.fork("other").__enter__())
    raises(ValueError, "is in use", tracker.add, "second", 7 + 2718)
    sizes = {"world_size": 2, "rank": 1}
    methods = {f"get_tensor_model_parallel_{what}": lambda n=n: n for what, n in sizes.items()}
    grid = types.SimpleNamespace(**methods)
    text = "partition_activations"
    raises(NotImplementedError, text, checkpointing.configure, grid, partition_activations=True)
    for mpu, rank in ((None, 0), (grid, 1), (None, 1)):
        checkpointing.configure(mpu)
        checkpointing.model_parallel_cuda_manual_seed(7)
        assert tracker.seeds_ == {7 + 2718 + rank}
    checkpointing._forget()
    torch.set_rng_state(kept)


def case_gradients_are_updated_together() -> None:
    def plain_sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    plain = make()
    optimizer = plain_sgd(plain)
    whole_loss(plain, 0).backward()
    for parameter in plain.blocks[0].parameters():
        parameter.grad.mul_(2).add_(parameter, alpha=0.01)
    optimizer.step()
    for stage in (2, 3):
        model, engine = started(config(stage, gradient_clipping=0), optimizer=plain_sgd)
        values = dict(make().named_parameters())
        names = {parameter: name for name, parameter in model.named_parameters()}
        backward(engine)
        deepspeed.utils.safe_update_full_grad_vectorized(
            model.blocks[0].parameters(), lambda grad, p: 2 * grad + 0.01 * values[names[p]]
        )
        engine.step()
        assert_values(model, plain, rtol=1.3e-6, atol=1e-5)


def case_lists_of_hosts_are_read_as_by_the_launcher(folder: Path) -> None:
    runner = deepspeed.launcher.runner
    path = folder / f"hosts{RANK}"
    path.write_text("# ours\nworker-0 slots=4\n\nworker-1 slots=2\n")
    pool = runner.fetch_hostfile(str(path))
    assert list(pool.items()) == [("worker-0", 4), ("worker-1", 2)]
    assert runner.fetch_hostfile(str(folder / "none")) is None
    everything = {"worker-0": [0, 1, 2, 3], "worker-1": [0, 1]}
    for include, exclude, expected in (
        ("", "", everything),
        ("worker-1@worker-0:0,2", "", {"worker-0": [0, 2], "worker-1": [0, 1]}),
        ("worker-1", "", {"worker-1": [0, 1]}),
        ("", "worker-1@worker-0:0,2", {"worker-0": [1, 3]}),
        ("worker-0:1@worker-0:3", "", {"worker-0": [1, 3]}),
    ):
        found = runner.parse_inclusion_exclusion(pool, include, exclude)
        assert list(found.items()) == list(expected.items())
        assert runner.parse_resource_filter(everything, include, exclude) == expected
    assert runner.apply_num_nodes_and_gpus(everything, 1, 2) == {"worker-0": [0, 1]}
    encoded = runner.encode_world_info({"localhost": [0, 1]})
    assert json.loads(base64.urlsafe_b64decode(encoded)) == {"localhost": [0, 1]}
    for wrong, text in (
        (["worker-2"], "worker-2"),
        (["worker-1:5"], "No slot '5'"),
        (["a", "b"], "mutually exclusive"),
    ):
        raises(ValueError, text, runner.parse_resource_filter, everything, *wrong)
    for text in ("worker-0 slots=4\nworker-0 slots=4\n", "worker-0\n", "# nothing\n"):
        path.write_text(text)
        raises(ValueError, "ostfile", runner.fetch_hostfile, str(path))


def case_the_logger_has_levels_and_timers_measure(folder: Path) -> None:
    log = deepspeed.utils.logging
    start(0, log_level="error")
    assert log.get_current_level() == log.log_levels["error"]
    assert not log.should_log_le("info")
    deepspeed.utils.set_log_level_from_string("info")
    with logged("DeepSpeed") as lines:
        start(0)
    # Programs look for it to see that their engine is DeepSpeed's.
    assert any("DeepSpeed info: version=0.19.8" in line for line in lines) == (RANK == 0)
    deepspeed.utils.set_log_level_from_string("warning")
    raises(ValueError, "loud", log.set_log_level_from_string, "loud")
    assert log.get_dist_msg("here", [RANK]) == f"[Rank {RANK}] here"
    assert log.get_dist_msg("here", [RANK + 1]) is log.get_dist_msg("nowhere") is None
    with logged("DeepSpeed") as lines:
        for _ in range(2):
            log.logger.warning_once("seen once")
    assert lines == ["WARNING seen once"]
    log.print_json_dist({"loss": 1}, [-1], str(folder / f"message{RANK}"))
    assert json.loads((folder / f"message{RANK}").read_text()) == {"loss": 1, "rank": RANK}
    timers = deepspeed.utils.timer.SynchronizedWallClockTimer()
    timers("step").start()
    raises(AssertionError, "already", timers("step").start)
    timers("step").stop(reset=True, record=False)
    assert timers.has_timer("step")
    with contextlib.redirect_stdout(io.StringIO()) as text:
        timers.log(["step"], reset=False)
    assert ("time (ms) | step: " in text.getvalue()) == (RANK == 0)
    assert timers("step").elapsed(reset=False) == sum(timers("step").records) * 1000
    assert timers.get_mean(["step", "other"]).keys() == {"step"}
    assert timers("step").records == []
    assert deepspeed.utils.timer.trim_mean([9, 1, 2, 3, 0], 0.2) == 2.0


def case_tiled_layers_are_one_layer() -> None:
    tiling = deepspeed.zero
    torch.manual_seed(3)
    layer = torch.nn.Linear(7, 5)
    x = torch.randn(2, 7)
    splits = {"in_splits": 3, "out_splits": 2, "init_linear": layer}
    tiled = tiling.TiledLinear(7, 5, **splits)
    torch.testing.assert_close(tiled(x), layer(x))
    parts = deepspeed.runtime.zero.tiling.split_tensor_along_last_dim(x, tiled.in_parts)
    assert [part.shape[-1] for part in parts] == [3, 2, 2]
    in_parts = {"input_is_already_split": True, "combine_out_splits": False}
    apart = tiling.TiledLinear(7, 5, **splits, **in_parts)
    torch.testing.assert_close(torch.cat(apart(parts), -1), layer(x))

    class Biased(torch.nn.Linear):
        def forward(self, x: torch.Tensor):
            return x @ self.weight.t(), self.bias

    product, bias = tiling.TiledLinearReturnBias(7, 5, linear_cls=Biased, **splits)(x)
    torch.testing.assert_close(product + bias, layer(x))
    raises(RuntimeError, "in_splits=8", tiling.TiledLinear, 7, 5, in_splits=8)
    raises(RuntimeError, "(5, 7)", tiled.copy_params_from, torch.nn.Linear(5, 7))
    settings = config(3, optimizer={"type": "SGD", "params": {"lr": 0.1}})
    engine, *_ = begin(model=torch.nn.Sequential(tiled), config=settings)
    engine.backward(engine(x).square().mean())
    engine.step()
    layer(x).square().mean().backward()
    expected = layer.weight - 0.1 * layer.weight.grad * min(1.0, 1.0 / norm_of(layer))
    tile = tiled.linears[1][2].weight
    with deepspeed.zero.GatheredParameters(tile):
        torch.testing.assert_close(tile.detach(), expected[3:, 5:].detach())


def case_needs_of_memory_are_those_of_zerorun_plan() -> None:
    from deepspeed.runtime.zero import stage3, stage_1_and_2

    os.environ["PATH"] = os.defpath  # an environment that is not activated
    model = make()
    count = sum(parameter.numel() for parameter in model.parameters())
    printed = set()
    for estimate, *given in (
        (stage3.estimate_zero3_model_states_mem_needs_all_live, model, 4, 2),
        (stage3.estimate_zero3_model_states_mem_needs_all_cold, count, 10, 4, 2),
        (stage_1_and_2.estimate_zero2_model_states_mem_needs_all_live, model, 4, 2),
        (stage_1_and_2.estimate_zero2_model_states_mem_needs_all_cold, count, 4, 2),
    ):
        with contextlib.redirect_stdout(io.StringIO()) as text:
            estimate(*given)
        printed.add(text.getvalue())
    (text,) = printed
    assert text.startswith(f"{count}: ")
    assert "8 ranks, 4 per host" in text
    assert "stage 3" in text


def case_helpers_of_the_runtime() -> None:
    utils = deepspeed.runtime.utils
    assert utils.partition_uniform(10, 4) == [0, 3, 6, 8, 10]
    weights = [1, 9, 1, 1, 8, 1, 3]
    ends = utils.partition_balanced(weights, 3)
    loads = [sum(weights[a:b]) for a, b in itertools.pairwise(ends)]
    splits = itertools.combinations(range(1, 7), 2)
    others = [(weights[:a], weights[a:b], weights[b:]) for a, b in splits]
    assert max(loads) == min(max(map(sum, parts)) for parts in others)
    nested = {"a": [torch.ones(2)], "b": (torch.ones(3), 4)}
    moved = utils.move_to_device(nested, "cpu")
    assert moved["a"][0] is nested["a"][0]
    assert moved["b"][1] == 4
    copied = utils.copy_to_device([torch.ones(2), torch.ones(3)], "meta", lambda t: t.numel() == 3)
    assert [tensor.device.type for tensor in copied] == ["cpu", "meta"]
    assert utils.call_to_str("f", 1, b=2) == "f(1, b=2)"
    zero = deepspeed.runtime.zero.utils
    doubled = zero.apply_to_tensors_only(lambda t: t * 2, [torch.ones(1), {"a": torch.ones(1)}, 3])
    assert (doubled[0].item(), doubled[1]["a"].item(), doubled[2]) == (2, 2, 3)
    deepspeed.init_distributed()
    comm, groups = deepspeed.comm, deepspeed.utils.groups
    whole = torch.zeros(WORLD_SIZE)
    comm.all_gather_into_tensor(output_tensor=whole, tensor=torch.ones(1), log_name="ones")
    comm.all_reduce(whole, prof=True, debug="a caller")
    assert whole.tolist() == [WORLD_SIZE] * WORLD_SIZE
    part = torch.zeros(1)
    comm.reduce_scatter_tensor(output_tensor=part, tensor=whole)
    assert part.item() == WORLD_SIZE**2
    assert comm.get_global_rank(group_rank=WORLD_SIZE - 1) == WORLD_SIZE - 1
    assert comm.get_all_ranks_from_group() == groups._get_data_parallel_group_ranks()
    assert (groups.get_model_parallel_world_size(), groups._get_broadcast_src_rank()) == (1, 0)
    raises(NotImplementedError, "give the mpu to", groups.initialize, ep_size=2)
    zero.assert_ints_same_as_other_ranks([1, 2])
    if RANK > 0:
        raises(RuntimeError, "[0]", zero.assert_ints_same_as_other_ranks, [RANK])
    else:
        zero.assert_ints_same_as_other_ranks([RANK])


def case_buffers_of_a_model_under_init_stay_wide() -> None:
    class Layer(torch.nn.Linear):
        def __init__(self, dtype: torch.dtype | None = None) -> None:
            super().__init__(40, 33, dtype=dtype)
            self.register_buffer("positions", torch.arange(4.0) / 3)
            self.register_buffer("wide", torch.empty(2, dtype=torch.float32).fill_(1 / 3))

    original, rounded = torch.empty, make(Layer).weight.bfloat16()
    for keys, dtype in ((BF16, torch.bfloat16), ({}, torch.float32)):
        with deepspeed.zero.Init(config_dict_or_path=config(3, **keys)):
            made = make(Layer)
        assert torch.empty is original
        assert made.positions.dtype == made.wide.dtype == torch.float32
        assert made.weight.dtype == dtype
        with deepspeed.zero.GatheredParameters(made.weight):  # drawn in that dtype, not rounded
            assert torch.equal(made.weight, make(lambda dtype=dtype: Layer(dtype)).weight)
            assert not torch.equal(made.weight, rounded)


def case_tiles_of_a_sequence_are_the_whole() -> None:
    from deepspeed.runtime.sequence_parallel import ulysses_sp

    class Net(torch.nn.Module):
        def __init__(self, tiled: bool) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(4, 16), torch.nn.Linear(16, 4)
            self.head, self.tiled = torch.nn.Linear(4, 6), tiled

        def mlp(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(torch.tanh(self.up(x)))

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            logits = self.head(x).flatten(0, -2)
            return torch.nn.functional.cross_entropy(logits, y.flatten(), reduction="sum")

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            if not self.tiled:
                x = self.mlp(self.mlp(x))
                return 2 * self.loss(x, y)
            compute, fused = (
                ulysses_sp.sequence_tiled_compute,
                ulysses_sp.TiledFusedLogitsLoss.apply,
            )
            x = ulysses_sp.TiledMLP.apply(Net.mlp, self, x, 3, [self.up.weight, self.down.weight])
            x = compute(self.mlp, 7, 3, {"x": x}, {}, "x", output_reduction=None)
            loss = fused(Net.loss, self, x, y, None, 4, [self.head.weight], "sum")
            return loss + compute(self.loss, 7, 2, {"x": x, "y": y}, {}, "x", None, 0, "sum")

    figures: dict[bool, list[float]] = {False: [], True: []}
    for tiled, found in figures.items():
        engine, *_ = start(3, make(lambda: Net(tiled)))
        random = torch.Generator().manual_seed(RANK)
        for _ in range(2):
            loss = engine(torch.randn(2, 7, 4, generator=random), torch.arange(14).view(2, 7) % 6)
            engine.backward(loss)
            engine.step()
            found += [loss.item(), engine.get_global_grad_norm()]
    torch.testing.assert_close(figures[True], figures[False], rtol=1e-5, atol=0)
