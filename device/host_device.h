#pragma once

// Marks functions that GPU kernels call, too.
#ifdef __CUDACC__
#define ZR_HOST_DEVICE __host__ __device__
#else
#define ZR_HOST_DEVICE
#endif
