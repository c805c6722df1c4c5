// What is made of single system calls.
#include <sys/resource.h>

#include "os/address.h"
#include "os/socket.h"
#include "os/thread_priority.h"
#include "os/uninterrupted.h"
#include "tests/common.h"

namespace zerorun::testing {
namespace {

// Ranks and launchers use it, and say themselves who is at the other end.
TEST(SocketTest, ErrorsNameTheAddressAndNoRank) {
  const Listener silent = reserve_port("127.0.0.1", 0);
  const auto soon = [] { return std::chrono::steady_clock::now() + 20ms; };
  for (const Absence absence : {Absence::gone, Absence::not_yet}) {
    EXPECT_ERROR(connect_to("127.0.0.1", silent.port, soon(), absence),
                 fmt::format("127.0.0.1 port {}", silent.port), Not(HasSubstr("rank")));
  }
  listen_on(silent);
  const FileDescriptor socket =
      connect_to("127.0.0.1", silent.port, soon() + std::chrono::minutes(1));
  EXPECT_ERROR(receive_frame(socket, 100, soon()), "the peer does not answer");
}

int nice_of(pid_t thread) { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(thread)); }

TEST(ThreadPriority, IsLowerForTheCallingThreadAlone) {
  const int before = nice_of(::gettid());
  std::thread([&] {
    lower_thread_priority();
    EXPECT_EQ(nice_of(::gettid()), std::max(before, 10));
  }).join();
  EXPECT_EQ(nice_of(::gettid()), before);
}

TEST(Uninterrupted, CallsAgainOnlyAfterASignal) {
  int calls = 0;
  const auto call = [&calls](int error) {
    calls = 0;
    return uninterrupted([&calls, error] {
      errno = error;
      return ++calls < 3 ? -1 : 7;
    });
  };
  EXPECT_EQ(call(EINTR), 7);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(call(EIO), -1);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(errno, EIO);
}

TEST(AddressTest, TellsTheLoopbackByItsText) {
  for (const char* host : {"localhost", "127.0.0.1", "127.1.2.3", "::1"}) {
    EXPECT_TRUE(is_loopback(host)) << host;
    EXPECT_TRUE(resolves_to_loopback(host)) << host;
  }
  for (const char* host : {"10.0.0.1", "fd00::1", "192.0.2.1"}) {
    EXPECT_FALSE(is_loopback(host)) << host;
    EXPECT_FALSE(resolves_to_loopback(host)) << host;
  }
}

TEST(AddressTest, GivesTheAddressThatStandsForAllOfTheSameFamily) {
  EXPECT_EQ(any_address_like("10.0.0.1"), "0.0.0.0");
  EXPECT_EQ(any_address_like("fd00::1"), "::");
}

TEST(AddressTest, AnInterfaceHasTheAddressOfTheFamilyThatIsAskedFor) {
  EXPECT_EQ(own_address_of("lo", ""), "127.0.0.1");
  EXPECT_EQ(own_address_of("lo", "10.0.0.1"), "127.0.0.1");
  EXPECT_EQ(own_address_of("127.0.0.1", "::1"), "127.0.0.1");
  EXPECT_EQ(own_address_of("localhost", "").empty(), false);
}

TEST(AddressTest, KnowsWhichAddressesAreThisHosts) {
  for (const char* own : {"localhost", "127.0.0.1", "127.1.2.3", "::1"}) {
    EXPECT_TRUE(is_own_address(own)) << own;
  }
  EXPECT_TRUE(is_own_address(own_address_towards("127.0.0.1")));
  // Sockets can be bound to the first two, and nobody has the others.
  for (const char* other : {"0.0.0.0", "::", "192.0.2.7", "no.such.host.invalid", ""}) {
    EXPECT_FALSE(is_own_address(other)) << other;
  }
}

TEST(AddressTest, TheAddressOfTheDefaultRouteComesFirstAndThoseOfContainersLast) {
  const OwnAddress docker = {"172.17.0.1", "docker0"};
  const OwnAddress compose = {"172.18.0.1", "br-3f2504e04f89"};
  const OwnAddress storage = {"10.1.0.7", "ib0"};
  const OwnAddress out = {"10.0.0.7", "eth0"};
  std::vector<OwnAddress> own = {docker, storage, compose, out};
  likeliest_first(own, {"10.0.0.7"});
  EXPECT_EQ(own, (std::vector{out, storage, docker, compose}));
  likeliest_first(own, {"172.18.0.1"});  // a bridge that the way out begins at, as OpenStack has it
  EXPECT_EQ(own.front(), compose);
}

TEST(AddressTest, WhatIsNotThisHostsIsAnErrorThatNamesIt) {
  for (const char* wrong : {"eth99", "192.0.2.7", "no.such.host.invalid"}) {
    EXPECT_ERROR_OF(CommError, own_address_of(wrong, ""), wrong);
  }
  EXPECT_ERROR_OF(CommError, own_address_towards("no.such.host.invalid"), "no.such.host.invalid");
}

}  // namespace
}  // namespace zerorun::testing
