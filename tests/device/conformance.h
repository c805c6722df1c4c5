#pragma once

#include <ostream>

#include "core/parallel.h"
#include "tests/common.h"
#include "zerorun/device.h"

namespace zerorun::testing {

// A backend that the conformance suite (tests/device/*_conformance_test.cc) runs on.
struct DeviceUnderTest {
  std::string name;
  std::function<std::shared_ptr<Device>()> make;
  std::function<void()> enter = [] {};  // before each test
  std::function<void()> leave = [] {};  // after it
};

// Else GoogleTest prints the bytes.
inline void PrintTo(const DeviceUnderTest& device, std::ostream* out) { *out << device.name; }

// The devices of the program that the suite is linked into.
std::vector<DeviceUnderTest> devices_under_test();

// An array on the device with a few elements before and behind it that nobody may touch. `user`:
// the stream of what uses it.
template <typename T>
class DeviceArray {
 public:
  // `offset` elements from an aligned address.
  DeviceArray(Device& device, Stream& user, const std::vector<T>& values, int64_t offset = 0)
      : device_(device),
        user_(user),
        offset_(offset),
        numel_(static_cast<int64_t>(values.size())),
        buffer_(device.allocate(bytes_of_all(), MemoryCategory::other)) {
    std::vector<T> all(static_cast<size_t>(offset_ + numel_ + kGuard));
    std::memset(static_cast<void*>(all.data()), kGuardByte, all.size() * sizeof(T));
    std::copy(values.begin(), values.end(), all.begin() + offset_);
    device_.upload(device_.inline_stream(), all.data(), whole());
    device_.inline_stream().synchronize();
  }

  TensorView view() const { return whole().slice(offset_, numel_); }
  operator TensorView() const& { return view(); }  // NOLINT: reads as a tensor in calls

  // The values when the stream is done; fails the test when the guards were written to.
  std::vector<T> host() const {
    user_.synchronize();
    std::vector<T> all(static_cast<size_t>(offset_ + numel_ + kGuard));
    device_.download(device_.inline_stream(), whole(), all.data());
    device_.inline_stream().synchronize();
    for (int64_t i = 0; i < offset_ + numel_ + kGuard; ++i) {
      if (i >= offset_ && i < offset_ + numel_) continue;
      unsigned char bytes[sizeof(T)];
      std::memcpy(bytes, &all[static_cast<size_t>(i)], sizeof(T));
      for (const unsigned char byte : bytes) EXPECT_EQ(byte, kGuardByte) << "guard " << i;
    }
    return {all.begin() + offset_, all.begin() + offset_ + numel_};
  }

 private:
  static constexpr int64_t kGuard = 40;
  static constexpr unsigned char kGuardByte = 0xa5;

  size_t bytes_of_all() const { return static_cast<size_t>(offset_ + numel_ + kGuard) * sizeof(T); }
  TensorView whole() const { return view_of(buffer_, dtype_of<T>(), offset_ + numel_ + kGuard); }

  Device& device_;
  Stream& user_;
  const int64_t offset_;
  const int64_t numel_;
  const Buffer buffer_;
};

struct DeviceConformance : ::testing::TestWithParam<DeviceUnderTest> {
  void SetUp() override {
    GetParam().enter();
    device_ = GetParam().make();
    stream_ = device_->make_stream("test");
  }
  void TearDown() override {
    stream_.reset();
    device_.reset();
    GetParam().leave();
  }

  void update(const UpdateTensors& tensors, const std::vector<UpdateSegment>& segments) {
    device_->update(*stream_, tensors, segments);
  }

  template <typename T>
  DeviceArray<T> array(const std::vector<T>& values, int64_t offset = 0) {
    return DeviceArray<T>(*device_, *stream_, values, offset);
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

// What is no number, and what is beyond all.
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Calls `check` with a value of each of these types.
template <typename... Types, typename Check>
void for_types(const Check& check) {
  (check(Types{}), ...);
}

inline std::string name_of_device(const ::testing::TestParamInfo<DeviceUnderTest>& info) {
  return info.param.name;
}
#define ZR_ON_ALL_DEVICES(suite)                                                      \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, ::testing::ValuesIn(devices_under_test()), \
                           name_of_device)

// Runs `body` with 1, 2 and 5 threads in parallel_for, where the build has threads there.
inline void for_thread_counts(const std::function<void()>& body) {
#ifdef _OPENMP
  const int before = max_threads();
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    body();
  }
  omp_set_num_threads(before);
#else
  body();
#endif
}

// Conversions under one name for all storage types.
inline float to_fp32(float value) { return value; }
inline float to_fp32(Bf16 value) { return to_float(value); }
inline float to_fp32(Fp16 value) { return to_float(value); }
template <typename T>
T from_fp32(float value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return to_bf16(value);
  } else if constexpr (std::is_same_v<T, Fp16>) {
    return to_fp16(value);
  } else {
    return value;
  }
}

inline uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
inline uint32_t bits_of(Bf16 value) { return value.bits; }
inline uint32_t bits_of(Fp16 value) { return value.bits; }

template <typename T>
std::vector<uint32_t> bits_of(const std::vector<T>& values) {
  std::vector<uint32_t> bits;
  bits.reserve(values.size());
  for (const T& value : values) bits.push_back(bits_of(value));
  return bits;
}

template <typename T>
std::vector<T> random_normal(int64_t numel, unsigned seed, float deviation = 1.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<T> values;
  for (int64_t i = 0; i < numel; ++i) values.push_back(from_fp32<T>(normal(random)));
  return values;
}

}  // namespace zerorun::testing
