// Ranks that communicate through the fake NCCL, and what a collective of theirs computes.
#pragma once

#include <nccl.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tests/comm/reference.h"

namespace zerorun::fake {

using zerorun::testing::Bytes;

struct Operation {
  std::string name;
  const void* in = nullptr;
  Bytes input{};  // what `in` held when this rank's stream got there
  void* out = nullptr;
  size_t count = 0;  // of the caller's argument
  ncclDataType_t type = ncclUint8;
  int detail = 0;  // root, or operation

  bool matches(const Operation& other) const {
    return name == other.name && count == other.count && type == other.type &&
           detail == other.detail;
  }
};

// The ranks of one unique id.
struct Group {
  explicit Group(int world_size) : ranks(world_size), operations(static_cast<size_t>(ranks)) {}

  std::mutex mutex;
  std::condition_variable changed;
  const int ranks;
  int joined = 0;
  int64_t arrived = 0;  // at meeting points, over all
  std::vector<Operation> operations;
};

inline DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return DType::uint8;
    case ncclInt64:
      return DType::int64;
    case ncclFloat16:
      return DType::fp16;
    case ncclFloat32:
      return DType::fp32;
    case ncclBfloat16:
      return DType::bf16;
  }
  return DType::uint8;
}

inline size_t input_bytes(const Group& group, const Operation& operation) {
  const size_t bytes = operation.count * zerorun::size_of(dtype_of(operation.type));
  return operation.name == "ncclReduceScatter" ? bytes * static_cast<size_t>(group.ranks) : bytes;
}

// The result for one rank, from all ranks' inputs.
inline Bytes compute(const Group& group, const Operation& mine, int rank) {
  const DType dtype = dtype_of(mine.type);
  const size_t bytes = mine.count * zerorun::size_of(dtype);
  if (mine.name == "ncclBroadcast") return group.operations[static_cast<size_t>(mine.detail)].input;
  std::vector<Bytes> inputs;
  for (const Operation& operation : group.operations) inputs.push_back(operation.input);
  Bytes result;
  if (mine.name == "ncclAllGather") {
    for (const Bytes& part : inputs) result.insert(result.end(), part.begin(), part.end());
    return result;
  }
  result.resize(inputs.front().size());
  const ReduceOp op = mine.detail == ncclMax   ? ReduceOp::max
                      : mine.detail == ncclMin ? ReduceOp::min
                                               : ReduceOp::sum;
  zerorun::testing::reference_reduce(inputs, dtype, op, zerorun::Output::overwrite, dtype, result);
  if (mine.name != "ncclReduceScatter") return result;
  const auto begin = result.begin() + static_cast<ptrdiff_t>(bytes) * rank;
  return {begin, begin + static_cast<ptrdiff_t>(bytes)};
}

}  // namespace zerorun::fake
