// A library in two copies that differ: see shared_library_test.cc.
extern "C" __attribute__((visibility("default"))) int zerorun_test_copy() { return ZERORUN_COPY; }
