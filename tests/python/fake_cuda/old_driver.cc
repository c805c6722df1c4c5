// libcuda.so.1 as far as the real CUDA runtime asks before it looks for GPUs. Its version of CUDA
// and what cuInit says are in the environment (or that it never says anything); no other function
// works.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#define ZR_DRIVER extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kNotSupported = 801;

int from_environment(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}

int refuse() { return kNotSupported; }

}  // namespace

ZR_DRIVER int cuDriverGetVersion(int* version) {
  *version = from_environment("FAKE_DRIVER_VERSION");
  return 0;
}

ZR_DRIVER int cuInit(unsigned /*flags*/) {
  while (from_environment("FAKE_DRIVER_HANGS") != 0) pause();
  return from_environment("FAKE_DRIVER_INIT");
}

ZR_DRIVER int cuGetProcAddress_v2(const char* name, void** function, int /*version*/,
                                  uint64_t /*flags*/, int* found) {
  const std::string_view wanted = name;
  *function = reinterpret_cast<void*>(refuse);
  if (wanted == "cuDriverGetVersion") *function = reinterpret_cast<void*>(cuDriverGetVersion);
  if (wanted == "cuInit") *function = reinterpret_cast<void*>(cuInit);
  if (wanted == "cuGetProcAddress") *function = reinterpret_cast<void*>(cuGetProcAddress_v2);
  if (found != nullptr) *found = 0;
  return 0;
}

ZR_DRIVER int cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}
