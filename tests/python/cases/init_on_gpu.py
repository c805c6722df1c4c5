"""zero.Init where ranks train on GPUs (that are not there): see fake_torch_cuda.py."""

import fake_torch_cuda

from cases.models import *

fake = fake_torch_cuda.installed()


def case_zero_init_puts_its_parts_on_the_gpu() -> None:
    with Init():
        assert fake.made_current == [DEVICE]
        model = make()
    assert {value.device for value in model.parameters()} == {DEVICE}
    assert {value.ds_tensor.device for value in model.parameters()} == {DEVICE}
    engine, *_ = initialize(model, adamw(model), config=config(3))
    assert_close(train(engine, 2), reference(steps=2)[0])


def case_zero_init_keeps_what_is_offloaded_on_the_host() -> None:
    """A model that the GPUs together do not hold: they get one parameter at a time."""
    settings = config(3, {"offload_param": {"device": "cpu"}})
    expected = reference(steps=2)[0]
    for arguments in ({"config_dict_or_path": settings}, {"remote_device": "cpu"}):
        with Init(**arguments):
            model = make(Model)
        assert {value.device for value in model.parameters()} == {DEVICE}
        assert {value.ds_tensor.device for value in model.parameters()} == {torch.device("cpu")}
        with GatheredParameters(model.parameters()):
            assert {value.device for value in model.parameters()} == {DEVICE}
            assert all(value.numel() == value.ds_numel for value in model.parameters())
        engine, *_ = initialize(model, adamw(model), config=settings)
        assert_close(train(engine, 2), expected)
    with Init(config_dict_or_path=settings, remote_device="none"):
        model = make(Model)
    assert {value.ds_tensor.device for value in model.parameters()} == {DEVICE}


def case_ranks_that_a_scheduler_shows_the_same_gpu_are_named() -> None:
    if WORLD_SIZE == 1:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "0")  # as srun does where tasks share all GPUs
        patch.delenv("ZERORUN_SHARE_GPUS")
        model = make()
        text = "ranks 0 and 1 have the same GPU (PCI 0000:00:00), which NCCL refuses: show each"
        refuses(text, zerorun.initialize, model, adamw(model), config=config(3))
