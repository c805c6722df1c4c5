#include "comm/self_communicator.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "comm/aborted.h"
#include "comm/host_communicator.h"
#include "comm/shm/reduce_kernels.h"
#include "core/check.h"

namespace zerorun {

namespace {

void run(const CollectiveCall& call) {
  const bool reduces = call.op == Collective::all_reduce || call.op == Collective::reduce_scatter;
  const bool computes = call.output == Output::accumulate || call.in.dtype != call.out.dtype;
  if (reduces && computes) {
    const std::array<const std::byte*, 1> sources = {call.in.data};
    reduce({sources, call.in.dtype, call.reduce, call.output}, call.out);
  } else if (call.in.data != call.out.data) {
    copy_bytes(call.out.data, call.in.data, call.in.nbytes());
  }
}

class SelfCommunicator final : public HostCommunicator {
 public:
  explicit SelfCommunicator(const GroupOptions& options)
      : HostCommunicator(options),
        aborted_(std::make_shared<Aborted>(options.own_number(), options.family)),
        kin_(options.family->join(
            {.tell = [aborted = aborted_](auto error) { aborted->fail(error); },
             .ask = [aborted = aborted_] { return aborted->error(); }})) {}

  std::string transport() const override { return "self"; }
  bool reads_peers() const override { return true; }
  void abort(std::string_view reason) noexcept override { aborted_->abort(reason); }

  std::optional<Buffer> allocate(size_t nbytes, Sharing /*sharing*/) override {
    aborted_->check();
    const size_t mapped = std::max<size_t>(nbytes, 1);
    void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      fail<DeviceError>("cannot allocate {} bytes: {}", nbytes, std::strerror(errno));
    }
    madvise(data, mapped, MADV_HUGEPAGE);  // faster where the host has them
    return Buffer(data, nbytes, [data, mapped] { munmap(data, mapped); });
  }

 private:
  void submit(CollectiveCall call, CpuStream& stream) override {
    stream.submit([call = std::move(call), aborted = aborted_] {
      aborted->check();
      run(call);
    });
  }

  // Tasks share it: they may outlive the communicator.
  const std::shared_ptr<Aborted> aborted_;
  const std::shared_ptr<void> kin_;
};

}  // namespace

std::shared_ptr<CallCommunicator> make_self_communicator(const GroupOptions& options) {
  return std::make_shared<SelfCommunicator>(options);
}

}  // namespace zerorun
