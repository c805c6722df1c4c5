// The part of the CUDA driver's interface that zerorun uses; see cuda_runtime.h beside it.
#pragma once

#include <cuda_runtime.h>

struct CUctx_st;
using CUcontext = CUctx_st*;
using CUstream = cudaStream_t;
using CUdeviceptr = unsigned long long;
using cuuint32_t = uint32_t;

enum CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_NOT_SUPPORTED = 801,
};
enum CUstreamWaitValue_flags { CU_STREAM_WAIT_VALUE_GEQ = 0 };

CUresult cuCtxGetCurrent(CUcontext* context);
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                             unsigned flags);
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                              unsigned flags);
