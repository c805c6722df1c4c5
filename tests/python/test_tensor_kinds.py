"""What the tensors of checkpoints are that only name them: as FSDP2 and others write them."""

import pytest
import torch
import zerorun
from zerorun.interchange.source import Piece, Source, SourceParameter
from zerorun.interchange.tensor_kinds import settle

VALUES = torch.arange(12.0).view(4, 3)
OTHERS = VALUES + 1


def tensor(value: torch.Tensor, *, parts: int = 1, trained: bool = False) -> SourceParameter:
    pieces = [Piece(0, value.numel(), value)]
    return SourceParameter(tuple(value.shape), pieces, value.dtype, trained, parts=parts)


def source_of(only_names: bool = True, **parameters: SourceParameter) -> Source:
    named = {name.replace("__", "."): parameter for name, parameter in parameters.items()}
    return Source("here", "a test", named, only_names=only_names)


def test_among_tensors_in_parts_buffers_are_whole_and_ties_have_the_same_values() -> None:
    source = source_of(
        head__weight=tensor(VALUES, parts=2),  # before the one whose states there are
        embedding__weight=tensor(VALUES, parts=2, trained=True),
        fixed__weight=tensor(OTHERS, parts=2),
        again__weight=tensor(OTHERS.clone(), parts=2),
        table=tensor(VALUES),  # the values of a parameter, and yet none
        calls=tensor(torch.tensor(3)),
    )
    told = settle(source, {})
    assert list(source.parameters) == ["embedding.weight", "fixed.weight"]
    assert source.aliases == {
        "head.weight": "embedding.weight",
        "again.weight": "fixed.weight",
    }
    assert {name: value.tolist() for name, value in source.buffers.items()} == {
        "table": VALUES.tolist(),
        "calls": 3,
    }
    assert [p.trained for p in source.parameters.values()] == [True, False]
    assert any("table, calls" in line and "buffers" in line for line in told)
    assert any("head.weight = embedding.weight" in line for line in told)
    assert len(told) == 2


def test_values_that_say_nothing_make_no_tie() -> None:
    """Ones and zeros, as norms and biases begin, other dtypes, and two that are both trained."""
    source = source_of(
        norm__weight=tensor(torch.ones(5), parts=2, trained=True),
        norm__bias=tensor(torch.zeros(5), parts=2, trained=True),
        fixed__weight=tensor(torch.ones(5), parts=2),
        fixed__bias=tensor(torch.zeros(5), parts=2),
        one__weight=tensor(VALUES, parts=2, trained=True),
        two__weight=tensor(VALUES, parts=2, trained=True),
        half__weight=tensor(VALUES.bfloat16(), parts=2),
        flat__weight=tensor(VALUES.flatten(), parts=2),
    )
    assert settle(source, {}) == []
    assert len(source.parameters) == 8
    assert not source.aliases


def test_of_whole_tensors_only_counts_and_statistics_are_known_to_be_buffers() -> None:
    source = source_of(
        weight=tensor(VALUES, trained=True),
        norm__running_mean=tensor(torch.rand(3)),
        norm__num_batches_tracked=tensor(torch.tensor(7)),
        frequencies=tensor(torch.rand(3)),
        packed=tensor(torch.ones(3, dtype=torch.uint8)),
    )
    told = settle(source, {})
    assert list(source.buffers) == ["norm.running_mean", "norm.num_batches_tracked"]
    assert list(source.parameters) == ["weight", "frequencies", "packed"]
    assert "frozen parameters: frequencies, packed (--tensor NAME=buffer" in told[-1]
    # Other sources say themselves what is a buffer.
    source = source_of(
        only_names=False, weight=tensor(VALUES, trained=True), calls=tensor(torch.tensor(3))
    )
    assert settle(source, {}) == []
    assert not source.buffers


def test_without_states_all_of_floating_point_counts_as_trained() -> None:
    source = source_of(
        embedding=tensor(VALUES, parts=2),
        head=tensor(VALUES.clone(), parts=2),
        fixed=tensor(OTHERS, parts=2),
        packed=tensor(torch.ones(4, dtype=torch.uint8), parts=2),
    )
    told = settle(source, {"fix*": "frozen"})
    trained = {name: parameter.trained for name, parameter in source.parameters.items()}
    assert trained == {"embedding": True, "fixed": False, "packed": False}
    assert source.aliases == {"head": "embedding"}
    assert "2 tensors are taken as parameters" in told[-1]


def test_what_is_given_comes_first() -> None:
    source = source_of(
        embedding=tensor(VALUES, trained=True),
        copy=tensor(VALUES.clone()),
        norm=tensor(torch.ones(3)),
        norm_again=tensor(torch.ones(3)),
        rope__0__angles=tensor(torch.rand(3)),
        rope__1__angles=tensor(torch.rand(3)),
    )
    given = {"copy": "frozen", "rope.*": "buffer", "norm_again": "norm"}
    told = settle(source, given)
    assert list(source.parameters) == ["embedding", "copy", "norm"]
    assert list(source.buffers) == ["rope.0.angles", "rope.1.angles"]
    assert source.aliases == {"norm_again": "norm"}
    assert told == []


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("heed", "buffer", "no such parameter; nearest: head"),
        ("body", "buffer", "body has optimizer states, so it is a trained parameter"),
        ("head", "bufer", "expected buffer, frozen, or the name of the parameter"),
        ("head", "head", "expected buffer, frozen, or the name of the parameter"),
        ("head", "body", "head and body differ in values, shape or dtype"),
    ],
)
def test_what_cannot_be_is_an_error_and_changes_nothing(name: str, kind: str, message: str) -> None:
    source = source_of(body=tensor(VALUES, trained=True), head=tensor(OTHERS))
    with pytest.raises(zerorun.ConfigError, match=message):
        settle(source, {name: kind})
    assert list(source.parameters) == ["body", "head"]
