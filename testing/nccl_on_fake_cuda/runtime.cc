// The functions of the CUDA runtime that NCCL calls.
#include <cstdio>
#include <cstring>

#include "testing/nccl_on_fake_cuda/fake.h"

using namespace zerorun::fake_cuda;

namespace {

thread_local int device_of_thread = 0;

}  // namespace

cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaGetLastError() { return cudaSuccess; }

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of the fake CUDA";
}

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "cudaErrorFake";
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return cudaErrorInvalidDevice;
  device_of_thread = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_device(device)) return cudaErrorInvalidDevice;
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "a fake GPU");
  properties->major = attribute_of(cudaDevAttrComputeCapabilityMajor, device);
  properties->minor = attribute_of(cudaDevAttrComputeCapabilityMinor, device);
  properties->multiProcessorCount = attribute_of(cudaDevAttrMultiProcessorCount, device);
  properties->sharedMemPerBlockOptin =
      static_cast<size_t>(attribute_of(cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  properties->pciBusID = attribute_of(cudaDevAttrPciBusId, device);
  properties->totalGlobalMem = size_t{80} << 30;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!is_device(device)) return cudaErrorInvalidDevice;
  *value = attribute_of(attribute, device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* address, int length, int device) {
  if (!is_device(device)) return cudaErrorInvalidDevice;
  std::snprintf(address, static_cast<size_t>(length), "%s", bus_address(device).c_str());
  return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* address) {
  for (*device = 0; *device < device_count(); ++*device) {
    if (bus_address(*device) == address) return cudaSuccess;
  }
  return cudaErrorInvalidDevice;
}

// NCCL's ranks of one host then meet in shared memory.
cudaError_t cudaDeviceCanAccessPeer(int* can, int /*device*/, int /*peer*/) {
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceSetLimit(cudaLimit /*limit*/, size_t /*value*/) { return cudaSuccess; }

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* /*mode*/) {
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = reinterpret_cast<cudaStream_t>(new char);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int /*priority*/) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete reinterpret_cast<char*>(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t /*stream*/) { return cudaSuccess; }

cudaError_t cudaStreamWaitEvent(cudaStream_t /*stream*/, cudaEvent_t /*event*/,
                                unsigned /*flags*/) {
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status,
                                     unsigned long long* /*id*/, cudaGraph_t* /*graph*/,
                                     const cudaGraphNode_t** /*dependencies*/,
                                     const cudaGraphEdgeData** /*edges*/, size_t* /*count*/) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t /*stream*/, cudaHostFn_t function, void* argument) {
  function(argument);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = reinterpret_cast<cudaEvent_t>(new char);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<char*>(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t /*event*/, cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t /*event*/) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) { return cudaSuccess; }

// A kernel is the address by which NCCL knows it.
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  *function = static_cast<cudaFunction_t>(const_cast<void*>(symbol));
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* /*kernel*/) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 96;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* /*kernel*/, cudaFuncAttribute /*attribute*/,
                                 int /*value*/) {
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* /*kernel*/, dim3 /*blocks*/, dim3 /*threads*/,
                             void** /*arguments*/, size_t /*shared*/, cudaStream_t /*stream*/) {
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function,
                                             unsigned /*version*/, unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = nullptr;
  *found = cudaDriverEntryPointSymbolNotFound;
  for (const Entry& entry : driver_entries()) {
    if (std::strcmp(entry.name, name) != 0) continue;
    *function = entry.function;
    *found = cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}

namespace zerorun::fake_cuda {

int current_device() { return device_of_thread; }

namespace {

const Entry kEntries[] = {
    ZR_ENTRY(cudaDriverGetVersion),
    ZR_ENTRY(cudaRuntimeGetVersion),
    ZR_ENTRY(cudaGetLastError),
    ZR_ENTRY(cudaGetErrorString),
    ZR_ENTRY(cudaGetErrorName),
    ZR_ENTRY(cudaGetDeviceCount),
    ZR_ENTRY(cudaGetDevice),
    ZR_ENTRY(cudaSetDevice),
    ZR_ENTRY(cudaGetDeviceProperties),
    ZR_ENTRY(cudaDeviceGetAttribute),
    ZR_ENTRY(cudaDeviceGetPCIBusId),
    ZR_ENTRY(cudaDeviceGetByPCIBusId),
    ZR_ENTRY(cudaDeviceCanAccessPeer),
    ZR_ENTRY(cudaDeviceGetStreamPriorityRange),
    ZR_ENTRY(cudaDeviceSetLimit),
    ZR_ENTRY(cudaThreadExchangeStreamCaptureMode),
    ZR_ENTRY(cudaStreamCreateWithFlags),
    ZR_ENTRY(cudaStreamCreateWithPriority),
    ZR_ENTRY(cudaStreamDestroy),
    ZR_ENTRY(cudaStreamSynchronize),
    ZR_ENTRY(cudaStreamQuery),
    ZR_ENTRY(cudaStreamWaitEvent),
    ZR_ENTRY(cudaStreamIsCapturing),
    ZR_ENTRY(cudaStreamGetCaptureInfo),
    ZR_ENTRY(cudaLaunchHostFunc),
    ZR_ENTRY(cudaEventCreate),
    ZR_ENTRY(cudaEventCreateWithFlags),
    ZR_ENTRY(cudaEventDestroy),
    ZR_ENTRY(cudaEventRecord),
    ZR_ENTRY(cudaEventQuery),
    ZR_ENTRY(cudaEventSynchronize),
    ZR_ENTRY(cudaGetFuncBySymbol),
    ZR_ENTRY(cudaFuncGetAttributes),
    ZR_ENTRY(cudaFuncSetAttribute),
    ZR_ENTRY(cudaLaunchKernel),
    ZR_ENTRY(cudaGetDriverEntryPointByVersion),
    ZR_ENTRY(cudaMalloc),
    ZR_ENTRY(cudaMallocFromPoolAsync),
    ZR_ENTRY(cudaFree),
    ZR_ENTRY(cudaFreeAsync),
    ZR_ENTRY(cudaHostAlloc),
    ZR_ENTRY(cudaFreeHost),
    ZR_ENTRY(cudaHostRegister),
    ZR_ENTRY(cudaHostUnregister),
    ZR_ENTRY(cudaHostGetDevicePointer),
    ZR_ENTRY(cudaPointerGetAttributes),
    ZR_ENTRY(cudaMemcpy),
    ZR_ENTRY(cudaMemcpyAsync),
    ZR_ENTRY(cudaMemset),
    ZR_ENTRY(cudaMemsetAsync),
    ZR_ENTRY(cudaMemGetInfo),
    ZR_ENTRY(cudaMemPoolCreate),
    ZR_ENTRY(cudaMemPoolDestroy),
    ZR_ENTRY(cudaMemPoolSetAttribute),
    ZR_ENTRY(cudaMemPoolTrimTo),
    ZR_ENTRY(cudaMemPoolSetAccess),
    ZR_ENTRY(cudaMemPoolGetAttribute),
};

}  // namespace

std::span<const Entry> runtime_entries() { return kEntries; }

}  // namespace zerorun::fake_cuda
