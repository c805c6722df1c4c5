#include <array>
#include <string>

#include "device/cuda/libraries/nvml_functions.h"

namespace zerorun {

NvmlFunctions load_nvml() {
  const SharedLibrary library(std::array<std::string, 1>{"libnvidia-ml.so.1"});
  return {ZR_NVML_FUNCTIONS(ZR_FIND_FUNCTION)};
}

}  // namespace zerorun
