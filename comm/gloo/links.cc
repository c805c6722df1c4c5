// libzerorun_gloo.so: links over Gloo, and its entry point.
#include "comm/links.h"

#include <gloo/common/error.h>
#include <gloo/config.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <mutex>
#include <utility>

#include "core/check.h"

namespace zerorun {

namespace {

using gloo::transport::UnboundBuffer;

// Waits are ended by cancel(), connecting by LinkOptions::run: a deadline of Gloo's own would be
// another one.
constexpr std::chrono::hours kNever{24 * 365};

// The waits of a rank, so that another thread can end them.
class Waits {
 public:
  using End = void (UnboundBuffer::*)();

  // Calls `wait`, which cancel() ends by calling `end` of the buffer.
  template <typename Wait>
  void run(UnboundBuffer& buffer, End end, const Wait& wait) {
    const auto entry = std::pair(&buffer, end);
    {
      const std::lock_guard lock(mutex_);
      if (aborted_) fail<CommError>("the communicator was aborted");
      current_.push_back(entry);
    }
    const auto forget = [&] {
      const std::lock_guard lock(mutex_);
      current_.erase(std::find(current_.begin(), current_.end(), entry));
    };
    bool completed = false;
    try {
      completed = wait();
    } catch (...) {
      forget();
      throw;
    }
    forget();
    if (!completed) fail<CommError>("the communicator was aborted");
  }

  void cancel() noexcept {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    for (const auto& [buffer, end] : current_) (buffer->*end)();
  }

 private:
  std::mutex mutex_;
  bool aborted_ = false;                                 // guarded by mutex_
  std::vector<std::pair<UnboundBuffer*, End>> current_;  // guarded by mutex_
};

// Gloo's text without the place in its sources.
std::string text_of(const std::exception& error) {
  const std::string text = error.what();
  const size_t place = text.find("] ");
  return text.starts_with('[') && place != std::string::npos ? text.substr(place + 2) : text;
}

class GlooTransfer final : public Transfer {
 public:
  GlooTransfer(Waits& waits, gloo::transport::Pair& pair, std::unique_ptr<UnboundBuffer> buffer,
               bool sends)
      : waits_(waits), pair_(pair), buffer_(std::move(buffer)), sends_(sends) {}
  // The memory of a message that nobody waits for any more is let go: nothing may write into it.
  ~GlooTransfer() override {
    if (!finished_) pair_.close();
  }

  void wait() override {
    try {
      if (sends_) {
        waits_.run(*buffer_, &UnboundBuffer::abortWaitSend,
                   [&] { return buffer_->waitSend(nullptr, kNever); });
      } else {
        waits_.run(*buffer_, &UnboundBuffer::abortWaitRecv,
                   [&] { return buffer_->waitRecv(nullptr, kNever); });
      }
    } catch (const gloo::Exception& error) {
      fail<CommError>("{}", text_of(error));
    }
    finished_ = true;
  }

 private:
  Waits& waits_;
  gloo::transport::Pair& pair_;
  const std::unique_ptr<UnboundBuffer> buffer_;
  const bool sends_;
  bool finished_ = false;
};

// Within, Gloo's write to a peer that has closed its connection is an error and not the end of the
// process. Threads that begin meanwhile are like that for good.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;
  ~WithoutSigpipe() {
    const timespec now{};
    if (sigismember(&before_, SIGPIPE) == 0) sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

class GlooLinks final : public Links {
 public:
  explicit GlooLinks(const LinkOptions& options);

  std::unique_ptr<Transfer> send(int peer, uint64_t tag,
                                 std::span<const std::byte> bytes) override {
    return start(peer, const_cast<std::byte*>(bytes.data()), bytes.size(), true,
                 [&](UnboundBuffer& buffer) { buffer.send(peer, tag); });
  }
  std::unique_ptr<Transfer> receive(int peer, uint64_t tag, std::span<std::byte> bytes) override {
    return start(peer, bytes.data(), bytes.size(), false,
                 [&](UnboundBuffer& buffer) { buffer.recv(peer, tag); });
  }
  void cancel() noexcept override { waits_.cancel(); }

 private:
  template <typename Post>
  std::unique_ptr<Transfer> start(int peer, std::byte* data, size_t nbytes, bool sends,
                                  const Post& post) {
    const WithoutSigpipe guard;
    try {
      auto buffer = context_->createUnboundBuffer(data, nbytes);
      post(*buffer);
      return std::make_unique<GlooTransfer>(waits_, *context_->getPair(peer), std::move(buffer),
                                            sends);
    } catch (const gloo::Exception& error) {
      fail<CommError>("{}", text_of(error));
    }
  }
  void connect(const LinkOptions& options);

  Waits waits_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
};

GlooLinks::GlooLinks(const LinkOptions& options) {
  const WithoutSigpipe guard;
  gloo::transport::tcp::attr place;
  place.hostname = options.address;
  try {
    device_ = gloo::transport::tcp::CreateDevice(place);
    context_ = device_->createContext(options.rank, options.world_size);
  } catch (const std::exception& error) {
    fail<CommError>(
        "rank {}: Gloo cannot use {} for traffic with other hosts (--interface, "
        "GLOO_SOCKET_IFNAME): {}",
        options.rank, options.address, text_of(error));
  }
  context_->setTimeout(kNever);
  connect(options);
}

// Every pair listens on a port of its own: its address goes through the store.
void GlooLinks::connect(const LinkOptions& options) {
  const auto key = [&](int from, int to) {
    return options.prefix + std::to_string(from) + "/" + std::to_string(to);
  };
  for (const int peer : options.peers) {
    const std::vector<char> address = context_->createPair(peer)->address().bytes();
    options.store->set(key(options.rank, peer), {address.begin(), address.end()});
  }
  for (const int peer : options.peers) {
    const std::string address = options.get(peer, key(peer, options.rank));
    gloo::transport::Pair& pair = *context_->getPair(peer);
    const auto connect_pair = [&] {
      try {
        pair.connect({address.begin(), address.end()});
      } catch (const gloo::Exception& error) {
        fail<CommError>(
            "rank {} at {} cannot connect with {} ({}): is this the network that the hosts share "
            "(--interface, GLOO_SOCKET_IFNAME), and does a firewall let them through?",
            options.rank, device_->str(), options.name_of_rank(peer), text_of(error));
      }
    };
    options.run(peer, connect_pair, [&] { pair.close(); });
  }
}

std::unique_ptr<Links> connect_with_gloo(const LinkOptions& options) {
  return std::make_unique<GlooLinks>(options);
}

std::string describe_gloo() {
  return fmt::format("Gloo {}.{}.{}", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR, GLOO_VERSION_PATCH);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const GlooBackend* zerorun_gloo_backend() {
  static const GlooBackend backend = {build_id(), connect_with_gloo, describe_gloo};
  return &backend;
}

}  // namespace zerorun
