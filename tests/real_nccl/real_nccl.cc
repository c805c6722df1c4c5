// The real libnccl, of the version that requirements-cuda.txt names or of the file that
// ZERORUN_TEST_NCCL names, on the fake of CUDA.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "testing/nccl_on_fake_cuda/fake_cuda_for.h"
#include "tests/real_nccl/nccl_under_test.h"

namespace zerorun::testing {

namespace {

void* open_on_fake() {
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_RAS_ENABLE", "0", 1);     // else processes of one host share a port
  setenv("NCCL_MAX_NCHANNELS", "1", 1);  // most of the time of joining is theirs
  const char* const given = std::getenv("ZERORUN_TEST_NCCL");
  const std::string file = given != nullptr ? given : ZERORUN_NCCL_LIBRARY;
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  constexpr int kGpus = 8;  // NCCL counts them once in a process
  if (fake_cuda_for(library, kGpus) == 0) {
    throw std::runtime_error("no symbols of the CUDA runtime in " + file);
  }
  return library;
}

}  // namespace

NcclUnderTest::NcclUnderTest() {
  static void* const library = open_on_fake();
  static_cast<void>(library);  // open_nccl() takes what the process has loaded
  functions_ = open_nccl();
}

NcclUnderTest::~NcclUnderTest() = default;

void use_gpu(int number) { cudaSetDevice(number); }

}  // namespace zerorun::testing
