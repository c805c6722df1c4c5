// What the CUDA backend does when CUDA, cuBLAS or NCCL refuse: a typed error that says where, and
// nothing leaks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <barrier>

#include "comm/nccl_communicator.h"
#include "device/cpu/cpu_stream.h"
#include "device/cuda/cuda_device.h"
#include "tests/cuda/fake_cuda_test.h"
#include "tests/gate.h"
#include "tests/harness.h"
#include "zerorun/error.h"
#include "zerorun/exact_sum.h"

namespace zerorun {
namespace {

using ::testing::HasSubstr;

class CudaFailureTest : public testing::FakeCudaTest {};

// Ends what uses memory before the memory ends, on errors too.
struct Drain {
  CudaDevice& device;
  ~Drain() {
    const cudaStream_t stream = cuda_stream(device.inline_stream()).handle();
    // The first may be the call that shall fail.
    if (cudaStreamSynchronize(stream) != cudaSuccess) cudaStreamSynchronize(stream);
  }
};

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
  device.orthogonalize(device.inline_stream(), matrix, 2, 2, 3, work);
  const UpdateSegment segment{.numel = matrix.numel, .scalars = {.rule = UpdateRule::sgd}};
  device.update(device.inline_stream(), {.master = matrix, .grad = other, .param = matrix},
                {&segment, 1});
  const auto host_stream = make_worker_stream("host");
  host_stream->submit([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  device.inline_stream().wait(host_stream->record());
  device.download(device.inline_stream(), matrix, host.data());
  device.inline_stream().synchronize();
  device.inline_stream().record().synchronize();
}

// Functions of which a failure cannot be reported: they undo, or only help others.
bool undoes(const std::string& name) {
  for (const char* end : {"Destroy", "Destroy_v2", "FreeAsync", "MemFree", "Abort", "Finalize",
                          "Deregister", "FreeHost", "TrimTo", "CaptureMode"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

// The fake's own error of each library.
int error_of(const std::string& name) {
  if (name.starts_with("cublas")) return CUBLAS_STATUS_INVALID_VALUE;
  return name.starts_with("cuda") ? static_cast<int>(cudaErrorUnknown)
                                  : static_cast<int>(ncclSystemError);
}

TEST_F(CudaFailureTest, EveryRefusedCallOfTheDeviceIsATypedErrorAndLeaksNothing) {
  use_device();
  const std::map<std::string, int> counts = fake_.counts();
  ASSERT_GT(counts.size(), 20U);
  int failures = 0;
  for (const auto& [name, count] : counts) {
    // Functions of the driver are looked up once, and done without where there are none. What is
    // counted in parentheses is no call.
    if (name.starts_with('(') || undoes(name) || name == "cudaGetLastError" ||
        name == "cudaEventQuery" || name == "cudaGetDriverEntryPointByVersion") {
      continue;
    }
    for (int nth = 0; nth < count; ++nth) {
      fake_.reset();
      fake_.fail(name, nth, error_of(name));
      try {
        use_device();
        // A stream's end and an error's own message ask without telling.
        EXPECT_TRUE(name == "cudaStreamSynchronize" || name == "cudaGetDevice" ||
                    name == "cudaSetDevice")
            << name << " " << nth;
      } catch (const DeviceError& error) {
        EXPECT_THAT(error.what(), HasSubstr("failed")) << name;
        ++failures;
      }
      EXPECT_THAT(fake_.leaks(), ::testing::IsEmpty()) << name << " " << nth;
      EXPECT_THAT(fake_.violations(), ::testing::IsEmpty()) << name << " " << nth;
    }
  }
  EXPECT_GT(failures, 40);
}

TEST_F(CudaFailureTest, AnErrorNamesTheDeviceTheCallAndTheReason) {
  CudaDevice device(0, 0);
  fake_.fail("cudaMemsetAsync", 0, cudaErrorLaunchFailure);
  const Buffer buffer = device.allocate(64, MemoryCategory::other);
  try {
    device.fill(device.inline_stream(), view_of(buffer, DType::fp32, 4), 0.0F);
    FAIL() << "expected an error";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cuda:0"));
    EXPECT_THAT(error.what(), HasSubstr("cudaMemsetAsync"));
    EXPECT_THAT(error.what(), HasSubstr("cudaErrorLaunchFailure"));
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

TEST_F(CudaFailureTest, AFailedHostEventIsTheErrorOfTheStreamThatWaitedForIt) {
  CudaDevice device(0, 0);
  const auto host = make_worker_stream("host");
  host->submit([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    throw CommError("a peer died");
  });
  device.inline_stream().wait(host->record());
  EXPECT_THROW(device.inline_stream().synchronize(), CommError);
  EXPECT_THROW(device.inline_stream().record().synchronize(), CommError);
}

// --- NCCL ---

class NcclFailureTest : public CudaFailureTest {
 protected:
  using Body = std::function<void(Communicator&, CudaDevice&)>;

  void on_ranks(int world_size, std::chrono::milliseconds timeout, const Body& body) {
    fake_.set_devices(world_size);
    const auto store = make_memory_store();
    testing::run_threads(world_size, [&](int rank) {
      CommunicatorOptions options;
      options.rank = rank;
      options.world_size = world_size;
      options.store = store;
      options.timeout = timeout;
      const auto device = std::make_shared<CudaDevice>(rank, 0);
      options.device = device;
      const auto communicator = make_nccl_communicator(options);
      body(*communicator, *device);
    });
  }
};

void use_communicator(Communicator& communicator, CudaDevice& device) {
  const int ranks = communicator.world_size();
  Stream& stream = device.inline_stream();
  const Buffer full = *communicator.allocate(1024, Sharing::per_rank);
  const Buffer part = device.allocate(1024, MemoryCategory::buckets);
  const Drain drain{device};
  const TensorView in = view_of(full, DType::bf16, 8 * ranks);
  communicator.reduce_scatter(in, view_of(part, DType::fp32, 8), Output::accumulate, stream,
                              "bucket 3");
  communicator.all_reduce(in, in, ReduceOp::sum, Output::overwrite, stream, "bucket 4");
  communicator.all_gather(in.slice(8 * communicator.rank(), 8), in, Sync::collective, stream,
                          "bucket 5");
  communicator.broadcast(in, 0, stream, "start");
  communicator.barrier(stream, "end").synchronize();
}

TEST_F(NcclFailureTest, EveryRefusedCallIsATypedErrorOnEveryRankAndLeaksNothing) {
  const auto run = [&] { on_ranks(2, std::chrono::milliseconds(1500), use_communicator); };
  run();
  const std::map<std::string, int> counts = fake_.counts();
  ASSERT_TRUE(counts.contains("ncclReduceScatter"));
  for (const auto& [name, count] : counts) {
    if (!name.starts_with("nccl") || undoes(name) || name == "ncclCommRegister" ||
        name == "ncclMemAlloc") {
      continue;
    }
    fake_.reset();
    fake_.fail(name, 0, ncclSystemError);
    EXPECT_THROW(run(), CommError) << name;
    EXPECT_THAT(fake_.leaks(), ::testing::IsEmpty()) << name;
    EXPECT_THAT(fake_.violations(), ::testing::IsEmpty()) << name;
  }
}

// NCCL may not be given registered memory by some ranks and other memory by the rest.
TEST_F(NcclFailureTest, MemoryThatOneRankCannotRegisterIsOrdinaryMemoryOnAll) {
  for (const char* name : {"ncclMemAlloc", "ncclCommRegister"}) {
    fake_.reset();
    fake_.fail(name, 0, ncclUnhandledCudaError);  // on one rank
    on_ranks(2, std::chrono::seconds(10), [&](Communicator& communicator, CudaDevice& device) {
      const Buffer block = *communicator.allocate(1024, Sharing::per_rank);
      communicator.barrier(device.inline_stream(), "all have it").synchronize();
      EXPECT_EQ(fake_.counts()["ncclMemFree"], fake_.counts()["ncclCommRegister"]) << name;
      communicator.barrier(device.inline_stream(), "all have looked").synchronize();
    });
  }
}

// Memory may have to wait for a GPU that waits for a peer, which only an abort can end.
TEST_F(NcclFailureTest, AnAbortDoesNotWaitForMemory) {
  on_ranks(2, std::chrono::seconds(20), [&](Communicator& communicator, CudaDevice& device) {
    if (communicator.rank() == 1) {
      EXPECT_THROW(communicator.allocate(1024, Sharing::per_rank), CommError);
      return;
    }
    testing::Gate gate;
    fake::submit(cuda_stream(device.inline_stream()).handle(), [&] { gate.pass(); });
    std::thread other(
        [&] { EXPECT_THROW(communicator.allocate(1024, Sharing::per_rank), CommError); });
    while (fake_.counts()["ncclMemAlloc"] < 2) std::this_thread::yield();  // one of each rank
    communicator.abort("it cannot go on");
    gate.open();
    other.join();
  });
}

TEST_F(NcclFailureTest, AnAsynchronousErrorIsReportedWithRankAndLabelOnAllRanks) {
  std::atomic<int> errors{0};
  std::barrier both(2);  // the error shall be rank 0's
  on_ranks(2, std::chrono::seconds(20), [&](Communicator& communicator, CudaDevice& device) {
    communicator.barrier(device.inline_stream(), "start").synchronize();
    both.arrive_and_wait();
    if (communicator.rank() == 1) return both.arrive_and_wait();  // never comes to bucket 7
    fake_.fail("(asynchronous error of NCCL)", 0, ncclRemoteError);
    try {
      communicator.barrier(device.inline_stream(), "bucket 7").synchronize();
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 0"));
      EXPECT_THAT(error.what(), HasSubstr("bucket 7"));
      EXPECT_THROW(communicator.barrier(device.inline_stream(), "later"), CommError);
      EXPECT_THROW(device.inline_stream().synchronize(), CommError);
      ++errors;
    }
    both.arrive_and_wait();
  });
  EXPECT_EQ(errors, 1);
}

TEST_F(NcclFailureTest, ADeadlineNamesWhatEachRankWaitsFor) {
  std::atomic<int> errors{0};
  on_ranks(3, std::chrono::milliseconds(300), [&](Communicator& communicator, CudaDevice& device) {
    communicator.barrier(device.inline_stream(), "start").synchronize();
    if (communicator.rank() == 2) {  // diverges: it is elsewhere
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      return;
    }
    const std::string label = "bucket 9";
    try {
      communicator.barrier(device.inline_stream(), label).synchronize();
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("barrier 'bucket 9'"));
      EXPECT_THAT(error.what(), HasSubstr("rank 2 did not answer"));
      ++errors;
    }
  });
  EXPECT_EQ(errors, 2);
}

TEST_F(NcclFailureTest, ARankThatNeverJoinsIsAnErrorAfterTheDeadline) {
  fake_.set_devices(1);
  CommunicatorOptions options;
  options.world_size = 2;
  options.store = make_memory_store();
  options.timeout = std::chrono::milliseconds(50);
  options.device = std::make_shared<CudaDevice>(0, 0);
  EXPECT_THROW(make_nccl_communicator(options), CommError);
}

// Gathers `count` pieces together.
void gather_together(Communicator& communicator, CudaDevice& device, int count) {
  const Buffer memory = *communicator.allocate(4096, Sharing::per_rank);
  const Drain drain{device};
  const TensorView all = view_of(memory, DType::bf16, 2048);
  const int64_t part = all.numel / count;
  const int64_t mine = part / communicator.world_size();
  Stream& stream = device.inline_stream();
  communicator
      .together(stream,
                [&] {
                  for (int i = 0; i < count; ++i) {
                    const TensorView whole = all.slice(i * part, mine * communicator.world_size());
                    communicator.all_gather(whole.slice(communicator.rank() * mine, mine), whole,
                                            Sync::settled, stream, "bucket " + std::to_string(i));
                  }
                })
      .synchronize();
}

TEST_F(NcclFailureTest, GathersMadeTogetherAreOneGroup) {
  on_ranks(2, std::chrono::seconds(10), [&](Communicator& communicator, CudaDevice& device) {
    gather_together(communicator, device, 5);
    gather_together(communicator, device, 1);  // needs none
  });
  EXPECT_EQ(fake_.counts()["ncclAllGather"], 2 * (5 + 1));
  EXPECT_EQ(fake_.counts()["ncclGroupStart"], 2);
  EXPECT_EQ(fake_.counts()["ncclGroupEnd"], 2);
}

TEST_F(NcclFailureTest, AnErrorWithinAGroupEndsTheGroupAndNamesIt) {
  for (const char* name : {"ncclGroupStart", "ncclAllGather", "ncclGroupEnd"}) {
    fake_.reset();
    fake_.fail(name, 0, ncclSystemError);
    const auto run = [&](Communicator& communicator, CudaDevice& device) {
      try {
        gather_together(communicator, device, 3);
        ADD_FAILURE() << "expected an error: " << name;
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), HasSubstr("bucket 0"));
        EXPECT_THAT(error.what(), HasSubstr("and 2 more"));
      }
    };
    on_ranks(2, std::chrono::milliseconds(500), run);
    const std::map<std::string, int> counts = fake_.counts();
    EXPECT_EQ(counts.at("ncclGroupStart") - (name == std::string("ncclGroupStart") ? 1 : 0),
              counts.contains("ncclGroupEnd") ? counts.at("ncclGroupEnd") : 0);
  }
}

TEST_F(NcclFailureTest, ReducesWithoutCopiesWhereDtypesAgree) {
  on_ranks(2, std::chrono::seconds(10), [&](Communicator& communicator, CudaDevice& device) {
    const Buffer full = *communicator.allocate(1024, Sharing::per_rank);
    const Buffer part = device.allocate(1024, MemoryCategory::buckets);
    communicator.barrier(device.inline_stream(), "").synchronize();
    const int before = fake_.counts()["cudaMemcpyAsync"] + fake_.counts()["cudaLaunchKernel"] +
                       fake_.counts()["cudaMallocFromPoolAsync"];
    communicator.barrier(device.inline_stream(), "").synchronize();  // both have counted
    const TensorView in = view_of(full, DType::bf16, 16);
    communicator.reduce_scatter(in, view_of(part, DType::bf16, 8), Output::overwrite,
                                device.inline_stream(), "");
    communicator.all_gather(view_of(part, DType::bf16, 8), in, Sync::collective,
                            device.inline_stream(), "");
    communicator.barrier(device.inline_stream(), "").synchronize();
    EXPECT_EQ(fake_.counts()["cudaMemcpyAsync"] + fake_.counts()["cudaLaunchKernel"] +
                  fake_.counts()["cudaMallocFromPoolAsync"],
              before);
    communicator.barrier(device.inline_stream(), "").synchronize();
  });
}

}  // namespace
}  // namespace zerorun
