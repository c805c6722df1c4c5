#include "comm/host_transport.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/hierarchical/collectives.h"
#include "comm/hierarchical/connecting.h"
#include "comm/shm/collectives.h"
#include "comm/shm/reduce_kernels.h"
#include "core/check.h"
#include "core/wait_clock.h"
#include "device/cpu/cpu_stream.h"

namespace zerorun {

namespace {

// Ranks of one host; more than any host has, and few enough for each to have a slot.
constexpr size_t kMaxRanks = 1024;

// If the cause of a call's error is in another group of ranks, the text also names the call.
void name_call(const CommError& error, const CollectiveCall& call) {
  constexpr size_t kShown = 60;  // messages of transports cut labels
  const std::string text = error.what();
  if (text.find(call.label.substr(0, kShown)) != std::string::npos) return;
  fail<CommError>("{}; this rank was in {} '{}'", text, name_of(call.op), call.label);
}

// The transport of one rank, whose collectives copy their inputs.
class SelfTransport final : public HostTransport {
 public:
  explicit SelfTransport(const GroupOptions& options)
      : rank_(options.own_number()), job_(options.job) {}

  TransportTraits traits() const override { return {.name = "self", .reads_peers = true}; }
  void abort(std::string_view reason) noexcept override { job_->abort(rank_, reason); }

 private:
  bool takes_turn(const CollectiveCall& /*call*/) const override { return false; }
  void run(const CollectiveCall& call) override {
    job_->check();
    const bool reduces = call.op == Collective::all_reduce || call.op == Collective::reduce_scatter;
    const bool computes = call.output == Output::accumulate || call.in.dtype != call.out.dtype;
    if (reduces && computes) {
      const std::array<const std::byte*, 1> sources = {call.in.data};
      reduce({sources, call.in.dtype, call.reduce, call.output}, call.out);
    } else if (call.in.data != call.out.data) {
      copy_bytes(call.out.data, call.in.data, call.in.nbytes());
    }
  }
  std::optional<Buffer> make_buffer(size_t nbytes, Sharing /*sharing*/) override {
    job_->check();
    const size_t mapped = std::max<size_t>(nbytes, 1);
    void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      fail<DeviceError>("cannot allocate {} bytes: {}", nbytes, std::strerror(errno));
    }
    madvise(data, mapped, MADV_HUGEPAGE);  // faster where the host has them
    return Buffer(data, nbytes, [data, mapped] { munmap(data, mapped); });
  }

  const int rank_;
  const std::shared_ptr<JobState> job_;
};

}  // namespace

// The place of a call in the order of calls, which ends with this object.
class HostTransport::Turn {
 public:
  Turn(std::shared_ptr<HostTransport> transport, std::string what)
      : transport_(std::move(transport)), what_(std::move(what)) {
    const std::lock_guard lock(transport_->order_.mutex);
    number_ = transport_->order_.taken++;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  // If its task was never run (the stream failed or ended), peers need not wait for it, nor later
  // turns.
  ~Turn() {
    if (!started_) {
      transport_->abort(what_ + " was skipped because of an earlier error on its stream");
    }
    Order& order = transport_->order_;
    {
      const std::lock_guard lock(order.mutex);
      ++order.ended;
      order.stopped = order.stopped || !started_;
    }
    order.changed.notify_all();
  }

  // Waits until all earlier turns have ended. Returns the transport.
  HostTransport& start() {
    Order& order = transport_->order_;
    std::unique_lock lock(order.mutex);
    const auto has_come = [&] { return order.ended >= number_ || order.stopped; };
    if (!has_come()) {
      const PeerWait wait;  // as most of the time of those before it
      order.changed.wait(lock, has_come);
    }
    started_ = true;
    return *transport_;
  }

 private:
  const std::shared_ptr<HostTransport> transport_;
  const std::string what_;
  uint64_t number_ = 0;
  bool started_ = false;
};

// A task keeps the transport: it may outlive the communicator.
Event HostTransport::start(std::span<CollectiveCall> calls, Stream& stream) {
  CpuStream& cpu = cpu_stream(stream);
  for (CollectiveCall& call : calls) {
    if (takes_turn(call)) {
      auto turn = std::make_shared<Turn>(shared_from_this(),
                                         fmt::format("{} '{}'", name_of(call.op), call.label));
      // The stream destroys the task, and with it the turn, before the next one.
      cpu.submit([turn = std::move(turn), call = std::move(call)] {
        HostTransport& transport = turn->start();
        const bool is_first = transport.error().empty();
        try {
          transport.run(call);
        } catch (const CommError& error) {
          if (is_first) name_call(error, call);
          throw;
        }
      });
    } else {
      cpu.submit([self = shared_from_this(), call = std::move(call)] { self->run(call); });
    }
  }
  return stream.record();
}

std::optional<Buffer> HostTransport::allocate(size_t nbytes, Sharing sharing) {
  Turn turn(shared_from_this(), "allocate");
  return turn.start().make_buffer(nbytes, sharing);
}

std::shared_ptr<Transport> HostTransport::make_group(GroupOptions& options) {
  return make_host_transport(options);
}

std::shared_ptr<Transport> make_host_transport(GroupOptions& options) {
  if (options.world_size == 1) return std::make_shared<SelfTransport>(options);
  ZR_CHECK(options.store != nullptr, "{} ranks need a store to find each other",
           options.world_size);
  Topology topology = Topology::discover(options);
  const size_t local_ranks = topology.ranks_of(topology.host_of(options.rank)).size();
  if (local_ranks > kMaxRanks) {
    fail<CommError>("got {} ranks: at most {} can share one host's memory", local_ranks, kMaxRanks);
  }
  if (topology.hosts() > 1) {
    try {
      return std::make_shared<hierarchical::Collectives>(options, std::move(topology));
    } catch (const std::exception& error) {  // the peers wait for this rank
      hierarchical::report_error(options, error.what());
      throw;
    }
  }
  auto transport = std::make_shared<shm::Collectives>(options);
  // Ranks that share a host need no store once they have met, but for what is shared within a
  // process: a program may open PyTorch's own group at the same port.
  if (!options.store->local_segments()) options.store = nullptr;
  return transport;
}

}  // namespace zerorun
