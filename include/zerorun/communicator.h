#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "zerorun/device.h"
#include "zerorun/export.h"
#include "zerorun/tensor.h"
#include "zerorun/work_span.h"

namespace zerorun {

enum class ReduceOp : uint8_t { sum, max, min };

// The fate of the output's previous content.
enum class Output : uint8_t { overwrite, accumulate };

// collective: every rank takes part, inputs are read after all have arrived.
// one_sided: the caller promises that the inputs of all ranks were complete before the last
// collective
//   and stay unchanged until the next one. A transport that can read its peers' memory then needs
//   no help from them, so ranks may ask for different things. The inputs must be in memory from
//   Communicator::allocate: per_rank, at the same offset on every rank, or per_host, side by side
//   in rank order.
enum class Sync : uint8_t { collective, one_sided };

enum class Collective : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
  barrier
};
inline constexpr int kCollectives = 6;
ZR_API std::string_view name_of(Collective op);

struct CollectiveCount {
  int64_t calls = 0;
  int64_t elements = 0;  // of the full (unsharded) tensor
  int64_t bytes = 0;     // of the full tensor, in the dtype of the input
};

struct CommStats {
  std::array<CollectiveCount, kCollectives> by_op{};
  const CollectiveCount& operator[](Collective op) const { return by_op[static_cast<size_t>(op)]; }
};

// A collective that has run. Times are seconds of std::chrono::steady_clock, which all processes of
// a host share, and not a number on a GPU's stream, where the host does not know them.
struct CollectiveSpan {
  Collective op = Collective::barrier;
  std::string label;
  int64_t bytes = 0;  // as in CollectiveCount
  double begin_s = 0;
  double end_s = 0;
};
// Called as a WorkObserver is.
using CollectiveObserver = std::function<void(const CollectiveSpan&)>;

// Memory that peers can address.
enum class Sharing : uint8_t {
  // Each rank has its own block; peers may read it during collectives.
  per_rank,
  // One block for all ranks, which must share a host; each sees the others' writes after the next
  // collective.
  per_host,
};

// Collectives among the ranks of one job. Calls are enqueued on the stream in the order in which
// every rank must make them; they return an event that has happened when the outputs are valid and
// the inputs may be overwritten. Errors (CommError: a peer died, diverged or stalled) surface when
// the event or the stream is synchronised; after one, every later call fails with the same error.
//
// `label` names the operation in errors ("bucket 3 (h.0 .. h.2)").
class ZR_API Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // How many of the ranks run on this host.
  virtual int local_world_size() const { return world_size(); }
  // The memory or network that collectives use: "self", "shm" (shared memory), "gloo" (ranks that
  // are each on a host of their own), "shm+gloo" (shared memory within hosts, Gloo between them),
  // "nccl", or "host-staged" and one of the first four.
  virtual std::string transport() const = 0;

  // Collective. Zero-filled, 64-byte aligned. per_host returns an empty optional when the ranks do
  // not share one host's memory. Collectives on such memory read it in place; on any other memory
  // they stage.
  virtual std::optional<Buffer> allocate(size_t nbytes, Sharing sharing) = 0;

  // out = sum over ranks of in, added in fp32 (int64 for int64) and rounded once. `in` and `out`
  // each fp32, bf16 or fp16, or both int64. `in` and `out` may be the same view. int64 also takes
  // max and min, fp32 to fp32 too.
  //
  // In host memory ranks are added in a fixed binary tree: the sum of ranks [0, n) is that of the
  // first p plus that of the rest, p being the largest power of two below n. The bits are the same
  // on any layout of hosts that has equally many ranks on each, a power of two, side by side in
  // rank order (the last host may have fewer). On other layouts each host's ranks are added in such
  // a tree, then the hosts; so two layouts differ by at most 2 (log2 n + 2) 2^-24 times the sum of
  // the inputs' magnitudes, before rounding.
  virtual Event all_reduce(TensorView in, TensorView out, ReduceOp op, Output output,
                           Stream& stream, std::string_view label) = 0;
  // out (numel = in.numel / world_size) = this rank's slice of that sum.
  // `out` may be this rank's own slice of `in`.
  virtual Event reduce_scatter(TensorView in, TensorView out, Output output, Stream& stream,
                               std::string_view label) = 0;
  // out (numel = in.numel * world_size) = the ranks' inputs, in rank order. `in` may be this rank's
  // own slice of `out`; if `out` is per_host memory as well, nothing is copied.
  virtual Event all_gather(TensorView in, TensorView out, Sync sync, Stream& stream,
                           std::string_view label) = 0;
  // `in` and `out`, of the same numel and dtype and apart, have a slice for each rank: slice r of
  // `out` = this rank's slice of rank r's `in`.
  virtual Event all_to_all(TensorView in, TensorView out, Stream& stream,
                           std::string_view label) = 0;
  virtual Event broadcast(TensorView inout, int root, Stream& stream, std::string_view label) = 0;
  virtual Event barrier(Stream& stream, std::string_view label) = 0;

  // The collectives that `calls` makes on `stream`, as one operation where that costs less. None
  // may read what another one writes. The event is of all of them; their own say nothing.
  virtual Event coalesced(Stream& stream, const std::function<void()>& calls) {
    calls();
    return stream.record();
  }

  // Collective. The communicator of the ranks that give the same color, numbered by key and then by
  // their numbers here; null for a rank whose color is negative. `name` is the group's in errors,
  // and begins the labels of its calls ("shard group 1: bucket 3"). Transport, deadline and device
  // follow from this one's; an error of either is one of the other, on every rank that is in both.
  virtual std::shared_ptr<Communicator> split(int color, int key, std::string_view name) = 0;

  // True when Sync::one_sided gathers need no help from the peers.
  virtual bool reads_peers() const = 0;

  // Ends the job's collectives: every peer's current and later calls fail with `reason`.
  virtual void abort(std::string_view reason) noexcept = 0;

  // Counts of the calls of this communicator, and of the groups that come from it.
  virtual CommStats stats() const = 0;

  // From now on `observer` learns of each of these calls.
  virtual Subscription observe(CollectiveObserver observer) = 0;
};

// A blocking key-value service through which ranks find each other.
class ZR_API Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits for the key; throws CommError naming it after `timeout`.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
};
// For ranks that are threads of one process.
ZR_API std::shared_ptr<Store> make_memory_store();

struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  bool serve = false;  // rank 0 listens; 0 as port picks a free one (see `bound_port`)
  std::string secret;  // peers that do not know it are dropped
  std::chrono::milliseconds timeout{60000};
};
ZR_API std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options);
// The port on which a TCP store is reached.
ZR_API uint16_t bound_port(const Store& store);

// This process's place in the job, from RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT and ZERORUN_JOB_SECRET. Without RANK and WORLD_SIZE: rank 0 of 1. Throws
// ConfigError when they contradict each other.
struct RankInfo {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 29500;
  std::string secret;
};
ZR_API RankInfo rank_from_environment();

struct CommunicatorOptions {
  int rank = 0;
  int world_size = 1;
  std::shared_ptr<Store> store;  // required when world_size > 1
  std::string name = "world";    // prefix of the store's keys
  // A wait for other ranks that is longer is an error that names them. A rank that died or left is
  // one at once.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  // In whose memory and on whose streams collectives work; null: the CPU's.
  std::shared_ptr<Device> device{};
  // The host that this rank is on: ranks that name the same one share memory, others are reached
  // over the network. Empty: this machine, as far as its processes and interfaces can be seen.
  std::string host{};
  // The network interface, or this host's address, of traffic with other hosts. Empty:
  // GLOO_SOCKET_IFNAME, or else the interface that leads to `master_addr`.
  std::string interface {};
  std::string master_addr{};
};
ZR_API std::shared_ptr<Communicator> make_communicator(const CommunicatorOptions& options);
// Store and communicator for this process, as the environment says. `device`: as in
// CommunicatorOptions.
ZR_API std::shared_ptr<Communicator> connect(
    const RankInfo& info, std::chrono::milliseconds timeout = std::chrono::minutes(10),
    std::shared_ptr<Device> device = nullptr);

}  // namespace zerorun
