#include "tests/fuzz/driver.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  zerorun::testing::fuzz({reinterpret_cast<const char*>(data), size});
  return 0;
}
