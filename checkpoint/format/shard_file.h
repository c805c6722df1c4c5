#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/hashed_header.h"
#include "zerorun/engine.h"
#include "zerorun/tensor.h"

namespace zerorun {

// The content of a tensor, by its parameter: the values of a frozen one, or the master of a
// trainable one; besides these, one of the optimizer's states by its name.
inline constexpr const char* kParamKind = "param";
inline constexpr const char* kMasterKind = "master";

// Elements [begin, end) of one kind of one parameter. A state with one element for each block of
// the parameter's counts its own.
struct ShardInterval {
  std::string parameter;
  std::string kind;
  int64_t begin = 0;
  int64_t end = 0;

  // The tensor's name in the file: "h.0.weight.exp_avg[0:4096]".
  std::string name() const;
};
// Nothing when it is not the name of an interval.
std::optional<ShardInterval> parse_interval(std::string_view name);

// One rank's part of a save: a table, and the source of its bytes. Tensors lie in the file by the
// size of their elements, the largest first, so that all are aligned to it.
class ShardPlan {
 public:
  // `wanted`: which parameters.
  using Wanted = std::function<bool(const ParameterSpec&)>;
  explicit ShardPlan(
      EngineStates& engine, Wanted wanted = [](const ParameterSpec&) { return true; });

  uint64_t nbytes() const { return nbytes_; }  // of the file
  // As they lie in the file, without hashes.
  const std::vector<HashedTensor>& tensors() const { return tensors_; }
  // True if read() calls with the tensors as they lie in the file.
  bool is_read_in_order() const { return std::is_sorted(places_.begin(), places_.end()); }
  // Calls use(tensor, data, on_host) once for each of the tensors, in any order. `data` is in
  // memory of the host if that says so, and then only during the call; else in the engine's device.
  using Use = std::function<void(size_t tensor, TensorView data, bool on_host)>;
  void read(const Use& use) const;

 private:
  template <typename Visit>
  void visit(StateAccess access, const Visit& visit) const;

  EngineStates& engine_;
  const Wanted wanted_;
  std::vector<HashedTensor> tensors_;
  std::vector<size_t> places_;  // index into tensors_, by visit
  uint64_t nbytes_ = 0;
};

}  // namespace zerorun
