// The devices and kernels that the suites for every implementation of Kernels run on.
#pragma once

#include "tests/common.h"
#include "train/cpu/cpu_kernels.h"
#include "train/model/kernels.h"

namespace zerorun::train::testing {

using Doubles = std::vector<double>;

inline std::vector<float> random_floats(int64_t numel, unsigned seed, float scale = 1.0F) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> values(static_cast<size_t>(numel));
  for (float& value : values) value = normal(engine);
  return values;
}

// c[rows, cols] = a[rows, inner] * b[inner, cols], given as functions of row and column.
using Entry = std::function<double(int64_t row, int64_t col)>;
inline Doubles product(int64_t rows, int64_t cols, int64_t inner, const Entry& a, const Entry& b) {
  Doubles c(static_cast<size_t>(rows * cols));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      double sum = 0.0;
      for (int64_t k = 0; k < inner; ++k) sum += a(i, k) * b(k, j);
      c[static_cast<size_t>(i * cols + j)] = sum;
    }
  }
  return c;
}

inline Entry entries(Doubles values, int64_t stride) {
  return [values = std::move(values), stride](int64_t row, int64_t col) {
    return values[static_cast<size_t>(row * stride + col)];
  };
}
inline Entry transposed(const Entry& a) {
  return [a](int64_t row, int64_t col) { return a(col, row); };
}

// Each row of `a`, as long as `b`, and `b`.
inline Doubles plus(Doubles a, const Doubles& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i % b.size()];
  return a;
}
inline Doubles times(double factor, Doubles a) {
  for (double& value : a) value *= factor;
  return a;
}

// Every element within `tolerance` of the largest expected magnitude.
template <typename Values>
void expect_close(const Values& actual, const Doubles& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0.0;
  for (double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * std::max(largest, 1e-30))
        << what << "[" << i << "]";
  }
}

// The derivative of `f` at values[i].
inline double derivative(const std::function<double(const Doubles&)>& f, Doubles values, size_t i) {
  constexpr double kStep = 1e-5;
  const double centre = values[i];
  values[i] = centre + kStep;
  const double above = f(values);
  values[i] = centre - kStep;
  return (above - f(values)) / (2 * kStep);
}

inline Doubles gradient(const std::function<double(const Doubles&)>& f, const Doubles& values) {
  Doubles result;
  for (size_t i = 0; i < values.size(); ++i) result.push_back(derivative(f, values, i));
  return result;
}

inline double weighted_sum(const Doubles& values, const Doubles& weights) {
  double sum = 0.0;
  for (size_t i = 0; i < values.size(); ++i) sum += values[i] * weights[i];
  return sum;
}

// An implementation, and the dtype of the parameters that it works with.
struct KernelsUnderTest {
  std::string name;
  std::function<std::shared_ptr<Device>()> make_device;
  std::function<std::unique_ptr<Kernels>(Device&, DType parameters)> make_kernels;
  DType parameters = DType::fp32;
  // A product has the same bits whatever is fused with it. cuBLAS may choose another algorithm.
  bool exact_fusion = true;
};

inline KernelsUnderTest cpu_kernels() {
  return {"cpu", [] { return make_cpu_device(); },
          [](Device&, DType) { return std::make_unique<CpuKernels>(); }};
}

inline std::ostream& operator<<(std::ostream& out, const KernelsUnderTest& kernels) {
  return out << kernels.name << '_' << name_of(kernels.parameters);
}

inline std::string name_of_case(const ::testing::TestParamInfo<KernelsUnderTest>& info) {
  return ::testing::PrintToString(info.param);
}

// The three dtypes of parameters on one implementation.
inline std::vector<KernelsUnderTest> with_every_dtype(KernelsUnderTest kernels) {
  std::vector<KernelsUnderTest> cases;
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    kernels.parameters = dtype;
    cases.push_back(kernels);
  }
  return cases;
}

// Error of a value that was computed in fp32 and rounded once to this dtype, relative to the
// largest of its matrix.
inline double rounding_of(DType dtype) {
  return dtype == DType::bf16 ? 5e-3 : dtype == DType::fp16 ? 6e-4 : 2e-6;
}

// Elements of any dtype in a device's memory.
inline Doubles read_back(Device& device, TensorView view) {
  Stream& stream = device.inline_stream();
  const Buffer wide =
      device.allocate(static_cast<size_t>(view.numel) * sizeof(float), MemoryCategory::other);
  std::vector<float> values(static_cast<size_t>(view.numel));
  device.cast(stream, view, view_of(wide, DType::fp32, view.numel));
  device.download(stream, view_of(wide, DType::fp32, view.numel), values.data());
  stream.synchronize();
  return {values.begin(), values.end()};
}

// A tensor in a device's memory, and the values it holds.
class DeviceTensor {
 public:
  DeviceTensor(Device& device, DType dtype, std::span<const float> values)
      : device_(device),
        numel_(std::ssize(values)),
        dtype_(dtype),
        buffer_(device.allocate(values.size() * size_of(dtype), MemoryCategory::other)) {
    Stream& stream = device.inline_stream();
    const Buffer wide = device.allocate(values.size_bytes(), MemoryCategory::other);
    device.upload(stream, values.data(), view_of(wide, DType::fp32, numel_));
    device.cast(stream, view_of(wide, DType::fp32, numel_), view());
    stream.synchronize();
  }
  DeviceTensor(Device& device, DType dtype, int64_t numel, float value)
      : DeviceTensor(device, dtype, std::vector<float>(static_cast<size_t>(numel), value)) {}
  TensorView view() const { return view_of(buffer_, dtype_, numel_); }
  operator TensorView() const { return view(); }  // NOLINT: reads as a tensor in calls of kernels
  Doubles values() const { return read_back(device_, view()); }

 private:
  Device& device_;
  int64_t numel_;
  DType dtype_;
  Buffer buffer_;
};

// int32 values in a device's memory.
class DeviceIndices {
 public:
  DeviceIndices(Device& device, std::span<const int32_t> values)
      : buffer_(device.allocate(values.size_bytes(), MemoryCategory::other)) {
    device.upload(device.inline_stream(), values.data(),
                  view_of(buffer_, DType::uint8, static_cast<int64_t>(values.size_bytes())));
    device.inline_stream().synchronize();
  }
  const int32_t* data() const { return reinterpret_cast<const int32_t*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

struct KernelsConformance : ::testing::TestWithParam<KernelsUnderTest> {
  DType parameters() const { return GetParam().parameters; }
  DType activations() const { return kernels_->activation_dtype(); }
  double activation_rounding() const { return rounding_of(activations()); }
  double gradient_rounding() const {
    return std::max(rounding_of(parameters()), activation_rounding());
  }

  DeviceTensor activation(std::span<const float> values) {
    return {*device_, activations(), values};
  }
  DeviceTensor activation(int64_t numel, float value = 7.0F) {
    return {*device_, activations(), numel, value};
  }
  DeviceTensor parameter(std::span<const float> values) { return {*device_, parameters(), values}; }
  DeviceTensor parameter(int64_t numel, float value = 9.0F) {
    return {*device_, parameters(), numel, value};
  }
  DeviceTensor sums(int64_t numel) { return {*device_, DType::fp32, numel, 7.0F}; }
  DeviceIndices indices(std::span<const int32_t> values) { return {*device_, values}; }

  std::shared_ptr<Device> device_ = GetParam().make_device();
  std::unique_ptr<Kernels> kernels_ = GetParam().make_kernels(*device_, GetParam().parameters);
};

}  // namespace zerorun::train::testing
