#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "zerorun/communicator.h"

namespace zerorun {

// A rank's GPU as other ranks know it: its host, and what CudaBackend::identity_of returns.
std::string gpu_of_rank(const std::string& identity);

// The last of `gpus`, by rank, with an earlier one on the same GPU of a host, or on another MIG
// instance of it: "ranks 0 and 1 have the same GPU (PCI 0000:0b:00)". NCCL refuses two ranks of a
// communicator with one PCI address on a host ("Duplicate GPU detected", init.cc), and a MIG
// instance has the address of its GPU.
std::optional<std::string> shared_gpu(std::span<const std::string> gpus);

// Makes a communicator for the memory of options.device, a GPU. It uses NCCL. If ranks share a GPU,
// which NCCL does not support, it copies tensors through host memory instead.
std::shared_ptr<Communicator> make_device_communicator(const CommunicatorOptions& options);

// Makes a communicator for the memory of options.device, of any kind, that goes through host
// memory: inputs are copied D2H, ranks of one host reduce them in shared memory, outputs are copied
// H2D. It is for ranks that share one GPU (tests, debugging). Results are bitwise identical to
// those of the shared-memory transport.
std::shared_ptr<Communicator> make_host_staged_communicator(const CommunicatorOptions& options);

// For `zerorun env`: NCCL's version and file, or why it cannot be used. Empty if this build cannot
// use GPUs at all.
std::string describe_device_collectives();

}  // namespace zerorun
