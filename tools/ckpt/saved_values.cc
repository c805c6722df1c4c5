#include <algorithm>
#include <cmath>
#include <cstring>

#include "tools/ckpt/ckpt_report.h"

namespace zerorun {

namespace {

int64_t numel_of(const SavedModel::Parameter& parameter) {
  int64_t numel = 1;
  for (const int64_t size : parameter.shape) numel *= size;
  return numel;
}

}  // namespace

bool has_values(const SavedModel::Parameter& parameter) {
  return parameter.saved && parameter.alias_of.empty();
}

uint64_t nbytes_of(const SavedModel::Parameter& parameter) {
  return static_cast<uint64_t>(numel_of(parameter)) * size_of(parameter.dtype);
}

SavedValues::SavedValues(const SavedModel& model, size_t parameter) {
  const SavedModel::Parameter& saved = model.parameters().at(parameter);
  dtype_ = saved.dtype;
  numel_ = numel_of(saved);
  bytes_.resize(nbytes_of(saved));
  model.read(parameter, {bytes_.data(), numel_, dtype_});
}

template <typename T>
T SavedValues::read(int64_t element) const {
  T value;
  std::memcpy(&value, bytes_.data() + static_cast<size_t>(element) * sizeof value, sizeof value);
  return value;
}

double SavedValues::value(int64_t element) const {
  switch (dtype_) {
    case DType::fp32:
      return read<float>(element);
    case DType::bf16:
      return to_float(read<Bf16>(element));
    case DType::fp16:
      return to_float(read<Fp16>(element));
    case DType::int64:
      return static_cast<double>(read<int64_t>(element));
    case DType::uint8:
      return read<uint8_t>(element);
  }
  return 0;
}

double SavedValues::distance(const SavedValues& other, int64_t element) const {
  if (dtype_ == DType::int64 && other.dtype_ == DType::int64) {
    // A double holds integers up to 2^53 only.
    const auto [low, high] = std::minmax({read<int64_t>(element), other.read<int64_t>(element)});
    return static_cast<double>(static_cast<uint64_t>(high) - static_cast<uint64_t>(low));
  }
  const double a = value(element);
  const double b = other.value(element);
  return a == b || (std::isnan(a) && std::isnan(b)) ? 0 : std::abs(a - b);
}

double SavedValues::norm() const {
  double squares = 0;
  for (int64_t i = 0; i < numel_; ++i) squares += value(i) * value(i);
  return std::sqrt(squares);
}

}  // namespace zerorun
