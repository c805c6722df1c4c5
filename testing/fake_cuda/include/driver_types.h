// The fake runtime has its types in one file; NVTX asks for them by this name.
#pragma once

#include <cuda_runtime.h>
