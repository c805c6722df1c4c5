#include "comm/agreement.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <tuple>

#include "core/check.h"
#include "zerorun/tensor.h"

namespace zerorun {

namespace {

// The errors that keep their type on other ranks; any other is an InternalError there.
using Errors =
    std::tuple<ConfigError, CommError, DeviceError, IoError, CheckpointError, NumericError>;
constexpr size_t kErrors = std::tuple_size_v<Errors>;

// The error of a step as numbers, for broadcast: its place among Errors, and its text cut to a
// fixed length.
struct FailedStep {
  static constexpr size_t kMaxText = 4088;
  size_t type = kErrors;
  std::array<char, kMaxText> text{};
};
static_assert(sizeof(FailedStep) % sizeof(int64_t) == 0);

FailedStep describe(size_t type, std::string_view text) {
  FailedStep failure{.type = type};
  std::copy_n(text.begin(), std::min(text.size(), FailedStep::kMaxText - 1), failure.text.begin());
  return failure;
}

template <size_t kType = 0>
FailedStep describe(const std::exception_ptr& error) try {
  std::rethrow_exception(error);
} catch (const std::tuple_element_t<kType, Errors>& e) {
  return describe(kType, e.what());
} catch (...) {
  return describe<kType + 1>(error);
}

template <>
FailedStep describe<kErrors>(const std::exception_ptr& error) try {
  std::rethrow_exception(error);
} catch (const std::bad_alloc&) {
  return describe(std::make_exception_ptr(DeviceError("out of host memory")));
} catch (const std::exception& e) {
  return describe(kErrors, e.what());
} catch (...) {
  return describe(kErrors, "unknown exception");
}

template <typename E>
class Common final : public E, public OnEveryRank {
 public:
  using E::E;
};

template <size_t kType = 0>
[[noreturn]] void raise(const FailedStep& failure, const std::string& text) {
  if constexpr (kType == kErrors) {
    throw Common<InternalError>(text);
  } else {
    if (failure.type == kType) throw Common<std::tuple_element_t<kType, Errors>>(text);
    raise<kType + 1>(failure, text);
  }
}

}  // namespace

void Agreement::run(std::string_view label, const std::function<void()>& step) {
  std::exception_ptr error;
  try {
    step();
  } catch (...) {
    error = std::current_exception();
  }
  const int first = world_size() - static_cast<int>(reduce(error ? world_size() - rank() : 0,
                                                           ReduceOp::max, label));
  if (first == world_size()) return;
  if (world_size() == 1) std::rethrow_exception(error);

  FailedStep failure = first == rank() ? describe(error) : FailedStep{};
  constexpr size_t kWords = sizeof(FailedStep) / sizeof(int64_t);
  std::array<int64_t, kWords> words{};
  std::memcpy(words.data(), &failure, sizeof failure);
  comm_.broadcast(view_of(std::span<int64_t>(words)), first, stream_, label).synchronize();
  std::memcpy(static_cast<void*>(&failure), words.data(), sizeof failure);
  raise(failure, fmt::format("rank {} of {}: {}", first, world_size(), failure.text.data()));
}

void Agreement::reduce(std::span<int64_t> values, ReduceOp op, std::string_view label) {
  const TensorView view = view_of(values);
  comm_.all_reduce(view, view, op, Output::overwrite, stream_, label).synchronize();
}

bool Agreement::is_same(int64_t value) {
  const int64_t lowest = reduce(value, ReduceOp::min);
  return lowest == reduce(value, ReduceOp::max);
}

int64_t Agreement::broadcast(int64_t value) {
  const TensorView view = view_of(std::span<int64_t>(&value, 1));
  comm_.broadcast(view, 0, stream_, "ranks agree").synchronize();
  return value;
}

std::vector<int64_t> Agreement::gather(std::span<const int64_t> words, std::string_view label) {
  std::vector<int64_t> own(words.begin(), words.end());
  std::vector<int64_t> all(own.size() * static_cast<size_t>(world_size()));
  comm_
      .all_gather(view_of(std::span<int64_t>(own)), view_of(std::span<int64_t>(all)),
                  Sync::collective, stream_, label)
      .synchronize();
  return all;
}

}  // namespace zerorun
