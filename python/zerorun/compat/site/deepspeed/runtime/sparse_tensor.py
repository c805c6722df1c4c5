"""A sparse gradient as indices and rows; zerorun's own gradients of embeddings are dense."""

import torch


class SparseTensor:
    """The rows of a matrix that are not zero."""

    is_sparse = True

    def __init__(self, dense_tensor: torch.Tensor | None = None) -> None:
        self.orig_dense_tensor = dense_tensor
        self.indices = self.values = self.dense_size = None
        if dense_tensor is None:
            return
        if not dense_tensor.is_sparse:
            raise AssertionError("SparseTensor: got a dense tensor, expected a sparse gradient")
        rows = dense_tensor.coalesce()
        self.dtype = rows.dtype
        self.indices, self.values = rows.indices().flatten(), rows.values()
        self.dense_size = list(rows.shape)

    def to_coo_tensor(self) -> torch.Tensor:
        return torch.sparse_coo_tensor(
            self.indices.unsqueeze(0), self.values, self.dense_size, check_invariants=True
        )

    @staticmethod
    def type() -> str:
        return "deepspeed.SparseTensor"

    def sparse_size(self) -> tuple[int, int]:
        """The elements that are stored, and those of the dense tensor."""
        return self.indices.numel() + self.values.numel(), torch.Size(self.dense_size).numel()

    def add(self, b: "SparseTensor") -> None:
        """Rows that both have are there twice, as in an uncoalesced tensor."""
        if self.dense_size != b.dense_size:
            raise AssertionError(f"SparseTensor.add: {self.dense_size} and {b.dense_size} differ")
        self.indices = torch.cat([self.indices, b.indices])
        self.values = torch.cat([self.values, b.values])

    def __repr__(self) -> str:
        stored, dense = self.sparse_size()
        return (
            f"DeepSpeed.SparseTensor(indices_size={self.indices.shape}, "
            f"values_size={self.values.shape}, dense_size={self.dense_size}, "
            f"device={self.values.device}, reduction_factor={dense / stored})"
        )
