// The CUDA device when CUDA or cuBLAS refuse: a typed error that says where, and nothing leaks.

#include "tests/device/cuda/failing_calls.h"
#include "tests/gate.h"
#include "zerorun/exact_sum.h"

namespace zerorun::testing {
namespace {

class CudaFailureTest : public FakeCudaTest {};

// Every function of the device at least once.
void use_device() {
  std::vector<float> host(4, 1.0F);  // outlives the streams
  CudaDevice device(0, 0);
  const Buffer buffer = device.allocate(4096, MemoryCategory::other);
  const Buffer sum = device.allocate(ExactSum::kWords * sizeof(int64_t), MemoryCategory::other);
  const auto stream = device.make_stream("work");
  const Drain drain{device};
  const TensorView words = view_of(sum, DType::int64, ExactSum::kWords);
  const TensorView matrix = view_of(buffer, DType::fp32, 4);
  const TensorView work = view_of(buffer, DType::fp32, 12, 256);
  const TensorView other = view_of(buffer, DType::bf16, 4, 1024);
  device.upload(*stream, host.data(), matrix);
  device.cast(*stream, matrix, other);
  device.add(*stream, other, matrix);
  device.scale(*stream, matrix, 0.5F);
  device.fill(*stream, words, 0.0F);
  const SquaresSegment squares{.numel = matrix.numel};
  device.sum_of_squares(*stream, matrix, {&squares, 1}, words);
  device.inline_stream().wait(stream->record());
  device.orthogonalize(device.inline_stream(), matrix, 2, 2, {.steps = 3}, work);
  const UpdateSegment segment{.numel = matrix.numel, .scalars = {.rule = UpdateRule::sgd}};
  device.update(device.inline_stream(), {.master = matrix, .grad = other, .param = matrix},
                {&segment, 1});
  const auto host_stream = make_worker_stream("host");
  host_stream->submit([] { std::this_thread::sleep_for(2ms); });
  device.inline_stream().wait(host_stream->record());
  device.download(device.inline_stream(), matrix, host.data());
  device.inline_stream().synchronize();
  device.inline_stream().record().synchronize();
}

TEST_F(CudaFailureTest, EveryRefusedCallOfTheDeviceIsATypedErrorAndLeaksNothing) {
  FailingCalls calls("device", 1, [](int /*rank*/, const std::shared_ptr<Store>& /*store*/) {
    use_device();
    return 0;
  });
  using Which = FailingCalls::Which;
  for (const Which which : {Which::first, Which::middle, Which::last}) {
    EXPECT_GT(calls.fail_each(which), 20);
  }
}

TEST_F(CudaFailureTest, AnErrorNamesTheDeviceTheCallAndTheReason) {
  CudaDevice device(0, 0);
  fake_.fail("cudaMemsetAsync", 0, cudaErrorLaunchFailure);
  const Buffer buffer = device.allocate(64, MemoryCategory::other);
  EXPECT_ERROR_OF(DeviceError,
                  device.fill(device.inline_stream(), view_of(buffer, DType::fp32, 4), 0.0F),
                  "cuda:0", "cudaMemsetAsync", "cudaErrorLaunchFailure");
}

// Whoever waits learns of it, and of what comes after there is nothing that seems to work.
TEST_F(CudaFailureTest, WorkThatFailsOnTheGpuIsTheErrorOfEachWaitForIt) {
  for (const bool by_event : {false, true}) {
    fake_.reset();
    CudaDevice device(0, 0);
    Stream& stream = device.inline_stream();
    Gate gate;
    fake::submit(cuda_stream(stream).handle(), [&] {
      gate.pass();
      fake_.break_device(0, cudaErrorIllegalAddress);
    });
    Event done = stream.record();
    gate.open();
    for (int time = 0; time < 2; ++time) {
      EXPECT_ERROR_OF(DeviceError, by_event ? done.synchronize() : stream.synchronize(),
                      "work on the GPU", "cudaErrorIllegalAddress");
    }
    EXPECT_THROW(device.allocate(64, MemoryCategory::other), DeviceError);
  }
}

TEST_F(CudaFailureTest, AStreamOfAnotherDeviceIsRefused) {
  fake_.set_devices(2);
  CudaDevice device(0, 0);
  CudaDevice other(1, 0);
  const auto cpu = make_cpu_device();
  const Buffer buffer = device.allocate(64, MemoryCategory::other);
  const TensorView view = view_of(buffer, DType::fp32, 4);
  EXPECT_THROW(device.fill(other.inline_stream(), view, 0.0F), InternalError);
  EXPECT_THROW(device.fill(cpu->inline_stream(), view, 0.0F), InternalError);
}

}  // namespace
}  // namespace zerorun::testing
