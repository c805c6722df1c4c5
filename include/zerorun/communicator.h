#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zerorun/device.h"
#include "zerorun/export.h"
#include "zerorun/tensor.h"
#include "zerorun/work_span.h"

namespace zerorun {

enum class ReduceOp : uint8_t { sum, max, min };

// Whether a collective overwrites its output or adds to it.
enum class Output : uint8_t { overwrite, accumulate };

// How the ranks of a gather work together.
// collective: every rank takes part; inputs are read after all ranks have arrived.
// one_sided: the caller promises that the inputs of all ranks were complete before the last
// collective and do not change until the next one. A transport that can read the memory of other
// ranks then needs no help from them, so ranks may gather different things. The inputs must be in
// memory from Communicator::allocate: with per_rank at the same offset on every rank, with per_host
// one after the other in rank order.
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
  int64_t elements = 0;  // elements of the full (unsharded) tensors
  int64_t bytes = 0;     // bytes of the full tensors, in the dtype of the input
};

struct CommStats {
  std::array<CollectiveCount, kCollectives> by_op{};
  const CollectiveCount& operator[](Collective op) const { return by_op[static_cast<size_t>(op)]; }
};

// Two ways to cut a flat tensor into one part per rank, in rank order: each has world_size + 1
// ascending positions. Both begin and end alike, and all ranks have the same.
struct Cuts {
  std::vector<int64_t> before;
  std::vector<int64_t> after;
};

// A completed collective. Times are in seconds of std::chrono::steady_clock, which all processes of
// a host share. On a GPU's stream the host does not know them, and they are NaN.
struct CollectiveSpan {
  Collective op = Collective::barrier;
  std::string label;
  int64_t bytes = 0;  // as in CollectiveCount
  double begin_s = 0;
  double end_s = 0;
};
// Same calling conventions as WorkObserver.
using CollectiveObserver = std::function<void(const CollectiveSpan&)>;

// How memory of Communicator::allocate is shared between ranks.
enum class Sharing : uint8_t {
  // Each rank has its own block; other ranks may read it during collectives.
  per_rank,
  // As per_rank. Pages are allocated when they are first written, not at once: until then what will
  // be written there may need the memory. So memory that is missing is no error of the call.
  per_rank_on_write,
  // All ranks use one block and must be on one host; writes of a rank are visible to the others
  // after the next collective.
  per_host,
};

// Collectives among the ranks of a job or of a group of its ranks. All ranks must make the same
// calls in the same order. A call is enqueued on the stream and returns an event that completes
// when the outputs are valid and the inputs may be overwritten. Errors (CommError: a peer died,
// diverged or stalled) are thrown when the event or the stream is synchronised. After an error
// every later call fails with the same error.
//
// `label` names the operation in errors ("bucket 3 (h.0 .. h.2)").
class ZR_API Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Number of ranks on this host.
  virtual int local_world_size() const { return world_size(); }
  // Name of the transport: "self" (one rank), "shm" (shared memory), "gloo" (one rank per host),
  // "shm+gloo" (shared memory within hosts, Gloo between them), "nccl", or "host-staged" followed
  // by one of the first four (GPU ranks that communicate through host memory).
  virtual std::string transport() const = 0;

  // Allocates memory that collectives can read in place; they copy any other memory first.
  // Collective. The memory is zero-filled and 64-byte aligned. With Sharing::per_host returns an
  // empty optional if the ranks are not on one host.
  virtual std::optional<Buffer> allocate(size_t nbytes, Sharing sharing) = 0;

  // out = sum of `in` over all ranks, computed in fp32 (int64 for int64) and rounded once. `in` and
  // `out` each are fp32, bf16 or fp16, or both are int64; they may be the same view. int64 also
  // supports ReduceOp::max and min, and so does fp32 if `out` is fp32.
  //
  // In host memory the order of additions is a fixed binary tree: the sum of ranks [0, n) is the
  // sum of the first p ranks plus that of the rest, where p is the largest power of two below n.
  // Results are bitwise identical for all layouts in which every host has the same number of ranks
  // (the last may have fewer), this number is a power of two, and the ranks of a host are
  // consecutive. In other layouts the ranks of each host are added in such a tree, then the hosts.
  // Two such layouts differ by at most 2 (log2 n + 2) 2^-24 times the sum of the inputs'
  // magnitudes, before rounding.
  virtual Event all_reduce(TensorView in, TensorView out, ReduceOp op, Output output,
                           Stream& stream, std::string_view label) = 0;
  // out (numel = in.numel / world_size) = this rank's slice of the sum, as all_reduce computes it.
  // `out` may be this rank's slice of `in`.
  virtual Event reduce_scatter(TensorView in, TensorView out, Output output, Stream& stream,
                               std::string_view label) = 0;
  // out (numel = in.numel * world_size) = the inputs of all ranks, in rank order. `in` may be this
  // rank's slice of `out`; if `out` is also Sharing::per_host memory, nothing is copied.
  virtual Event all_gather(TensorView in, TensorView out, Sync sync, Stream& stream,
                           std::string_view label) = 0;
  // `in` and `out` have one slice per rank: slice r of `out` = this rank's slice of the `in` of
  // rank r. They have the same numel and dtype and do not overlap.
  virtual Event all_to_all(TensorView in, TensorView out, Stream& stream,
                           std::string_view label) = 0;
  // An all_to_all of a tensor that is cut in one way before and in another way after: `in` = this
  // rank's part by cuts->before, `out` = its part by cuts->after. They do not overlap. Counted with
  // the mean of all parts.
  virtual Event redistribute(TensorView in, TensorView out, std::shared_ptr<const Cuts> cuts,
                             Stream& stream, std::string_view label) = 0;
  virtual Event broadcast(TensorView inout, int root, Stream& stream, std::string_view label) = 0;
  virtual Event barrier(Stream& stream, std::string_view label) = 0;

  // Runs the collectives that `calls` makes on `stream` as one operation if that is faster. None of
  // them may read what another writes. The returned event completes with all of them; the events
  // that they return themselves have no meaning.
  virtual Event coalesced(Stream& stream, const std::function<void()>& calls) {
    calls();
    return stream.record();
  }

  // Returns the communicator of the ranks that pass the same color, ordered by key and then by
  // their rank here; null for a rank whose color is negative. Collective. `name` names the group in
  // errors and is the prefix of the labels of its calls ("shard group 1: bucket 3"). Timeout and
  // device are those of this communicator. An error of one of the two is also an error of the
  // other, on every rank that is in both.
  virtual std::shared_ptr<Communicator> split(int color, int key, std::string_view name) = 0;

  // The communicator of the same ranks whose calls run beside those of this one; this one itself if
  // that is not supported. The first call is collective and gives it its name, as in split(). It
  // ends with this one.
  virtual Communicator& second_lane(std::string_view /*name*/) { return *this; }

  // True if Sync::one_sided gathers need no help from other ranks.
  virtual bool reads_peers() const = 0;

  // Aborts all collectives of the job: current and later calls fail with `reason` on every rank.
  virtual void abort(std::string_view reason) noexcept = 0;

  // Counts the calls of this communicator and of the groups that were split from it.
  virtual CommStats stats() const = 0;

  // Calls `observer` for each of these calls from now on, until the subscription is released.
  virtual Subscription observe(CollectiveObserver observer) = 0;
};

class LocalSegments;

// A key-value service through which ranks find each other.
class ZR_API Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is set. Throws CommError naming the key after `timeout`.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  // The value of the key, or nothing if it is not set now.
  virtual std::optional<std::string> find(const std::string& key) = 0;
  // The memory that ranks share if they are threads of one process; null for other stores.
  virtual std::shared_ptr<LocalSegments> local_segments() { return nullptr; }
  // The port of a TCP store; 0 for other stores.
  virtual uint16_t port() const { return 0; }
};
// Returns a store for ranks that are threads of one process.
ZR_API std::shared_ptr<Store> make_memory_store();

struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  bool serve = false;  // true on rank 0, which listens; port 0 picks a free port (see bound_port)
  std::string secret;  // connections of peers that do not know it are closed
  std::chrono::milliseconds timeout{60000};
};
ZR_API std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options);
// Returns the port of a TCP store.
ZR_API uint16_t bound_port(const Store& store);

// The rank of this process and how to reach its peers, from the variables RANK, WORLD_SIZE,
// LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and ZERORUN_JOB_SECRET. If RANK and
// WORLD_SIZE are not set: rank 0 of 1. rank_from_environment throws ConfigError if they contradict
// each other.
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
  // A longer wait for other ranks is an error that names them. If a rank died or left, the error
  // comes at once.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  // Device of the memory and streams that collectives use; null: the CPU.
  std::shared_ptr<Device> device{};
  // Name of this rank's host. Ranks with the same name share memory; others communicate over the
  // network. Empty: the host is detected (machine, pid and network namespace).
  std::string host{};
  // Network interface, or address of this host, for traffic with other hosts. Empty:
  // GLOO_SOCKET_IFNAME, else the interface that leads to `master_addr`.
  std::string interface {};
  std::string master_addr{};
};
ZR_API std::shared_ptr<Communicator> make_communicator(const CommunicatorOptions& options);
// Creates the store and the communicator of this process. `timeout` and `device` are as in
// CommunicatorOptions.
ZR_API std::shared_ptr<Communicator> connect(
    const RankInfo& info, std::chrono::milliseconds timeout = std::chrono::minutes(10),
    std::shared_ptr<Device> device = nullptr);

}  // namespace zerorun
