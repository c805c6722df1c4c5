// libcuda.so.1 without content: that there is a driver is all that zerorun asks before it opens its
// CUDA backend.
extern "C" __attribute__((visibility("default"))) const int zerorun_fake_driver = 1;
