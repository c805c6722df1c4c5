#include "train/model/model_flops.h"

#include <algorithm>

#include "core/observers.h"
#include "train/model/activations.h"

namespace zerorun::train {

namespace {

constexpr int64_t kMinSide = 256;
constexpr int64_t kMaxSide = 4096;
constexpr int kRepetitions = 3;
constexpr double kLongEnough = 0.02;  // minimum time of a product in seconds

}  // namespace

double flops_per_token(const GptConfig& config, int64_t seq_len) {
  const auto width = static_cast<double>(config.width);
  const auto layers = static_cast<double>(config.layers);
  const double block = 4 * width * width + 2 * width * static_cast<double>(config.inner);
  const double head = static_cast<double>(config.vocabulary) * width;
  return 6 * (layers * block + head) + 12 * layers * width * static_cast<double>(seq_len);
}

double measure_peak_flops(Device& device, Kernels& kernels, DType dtype) {
  Stream& stream = device.inline_stream();
  double peak = 0.0;
  double seconds = 0.0;
  for (int64_t side = kMinSide; side <= kMaxSide && seconds < kLongEnough; side *= 2) {
    const Activation x(device, kernels.activation_dtype(), side * side);
    const Activation weight(device, dtype, side * side);
    const Activation y(device, kernels.activation_dtype(), side * side);
    device.fill(stream, x.all(), 0.5F);
    device.fill(stream, weight.all(), 0.5F);
    for (int i = 0; i < kRepetitions; ++i) {
      stream.synchronize();
      const double begin = steady_seconds();
      kernels.linear({side, side, side}, x.all(), weight.all(), {}, {}, y.all());
      stream.synchronize();
      seconds = steady_seconds() - begin;
      const auto edge = static_cast<double>(side);
      peak = std::max(peak, 2 * edge * edge * edge / seconds);
    }
  }
  return peak;
}

}  // namespace zerorun::train
