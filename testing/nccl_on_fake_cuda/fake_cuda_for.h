#pragma once

extern "C" {

// Lets a library, a handle of dlopen's, run on this fake of CUDA with that many GPUs instead of on
// the CUDA runtime that is linked into it. Returns how many functions were replaced: 0 when its
// file has no symbols.
int fake_cuda_for(void* library, int gpus);
}
