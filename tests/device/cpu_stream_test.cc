#include "device/cpu/cpu_stream.h"

#include <sys/wait.h>
#include <unistd.h>

#include "device/slot_ring.h"
#include "tests/common.h"
#include "tests/gate.h"

namespace zerorun::testing {
namespace {

TEST(WorkerStream, RunsBesideTheCallerAndAnEventMarksOnlyTheWorkBeforeIt) {
  Gate gate;
  const auto stream = make_worker_stream("event");
  EXPECT_FALSE(stream->is_inline());
  int value = 0;
  stream->submit([&value] { value = 1; });
  const Event event = stream->record();
  stream->submit([&gate] { gate.pass(); });  // would deadlock on the caller's thread
  event.synchronize();                       // does not wait for the gate
  EXPECT_TRUE(event.ready());
  EXPECT_EQ(value, 1);
  EXPECT_FALSE(stream->record().ready());
  gate.open();
  stream->synchronize();
  EXPECT_TRUE(stream->record().ready());
}

TEST(WorkerStream, WaitOrdersStreamsWithoutBlockingTheCaller) {
  Gate gate;
  const auto producer = make_worker_stream("producer");
  const auto consumer = make_worker_stream("consumer");
  int value = 0;
  int seen = 0;
  producer->submit([&] {
    gate.pass();
    value = 7;
  });
  consumer->wait(producer->record());
  consumer->submit([&] { seen = value; });
  const Event done = consumer->record();
  EXPECT_FALSE(done.ready());
  gate.open();
  done.synchronize();
  EXPECT_EQ(seen, 7);
}

TEST(WorkerStream, ErrorSkipsLaterWorkAndIsRethrownByStreamAndEvents) {
  const auto stream = make_worker_stream("failing");
  bool ran = false;
  stream->submit([] { throw DeviceError("first"); });
  stream->submit([] { throw DeviceError("second"); });
  stream->submit([&ran] { ran = true; });
  const Event event = stream->record();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(error_of([&] { stream->synchronize(); }), "first");
    EXPECT_EQ(error_of([&] { event.synchronize(); }), "first");
  }
  EXPECT_TRUE(event.ready());
  EXPECT_FALSE(ran);
}

TEST(WorkerStream, ErrorReachesStreamsThatWait) {
  const auto failing = make_worker_stream("failing");
  const auto waiting = make_worker_stream("waiting");
  bool ran = false;
  failing->submit([] { throw DeviceError("upstream"); });
  waiting->wait(failing->record());
  waiting->submit([&ran] { ran = true; });
  EXPECT_EQ(error_of([&] { waiting->synchronize(); }), "upstream");
  EXPECT_FALSE(ran);
}

TEST(WorkerStream, DestructionFinishesSubmittedWork) {
  std::atomic<int> count = 0;
  Gate gate;
  Event last;
  {
    const auto stream = make_worker_stream("drain");
    stream->submit([&gate] { gate.pass(); });
    for (int i = 0; i < 100; ++i) stream->submit([&count] { ++count; });
    last = stream->record();
    gate.open();
  }
  EXPECT_EQ(count, 100);
  EXPECT_TRUE(last.ready());
  last.synchronize();  // outlives its stream
}

TEST(WorkerStream, EndsInAForkedChildWhichHasNotItsThread) {
  Gate begun;
  Gate gate;
  auto idle = make_worker_stream("idle");
  auto busy = make_worker_stream("busy");
  busy->submit([&] {
    begun.open();
    gate.pass();
  });
  begun.pass();
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    const bool waits = error_of<InternalError>([&] { busy->synchronize(); }).empty();
    busy.reset();
    idle.reset();
    _exit(waits ? 1 : 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  gate.open();
}

TEST(WorkerStream, TaskIsDestroyedBeforeItsEventHappens) {
  const auto stream = make_worker_stream("owner");
  auto resource = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = resource;
  stream->submit([owned = std::move(resource)] { EXPECT_EQ(*owned, 1); });
  stream->synchronize();
  EXPECT_TRUE(watch.expired());
}

TEST(InlineStream, RunsAtOnceAndKeepsNoError) {
  const auto stream = make_inline_stream();
  EXPECT_TRUE(stream->is_inline());
  const auto caller = std::this_thread::get_id();
  stream->submit([caller] { EXPECT_EQ(std::this_thread::get_id(), caller); });
  EXPECT_EQ(error_of([&] { stream->submit([] { throw DeviceError("now"); }); }), "now");
  const auto worker = make_worker_stream("worker");
  int value = 0;
  worker->submit([&value] { value = 3; });
  stream->wait(worker->record());
  EXPECT_EQ(value, 3);
  stream->synchronize();
  EXPECT_TRUE(stream->record().ready());
}

// A random graph of tasks over several streams: task i reads what earlier tasks of other streams
// wrote, ordered by events only. ThreadSanitizer sees any missing edge; the values show any wrong
// order.
TEST(WorkerStream, RandomDependenciesHold) {
  constexpr int kStreams = 4;
  constexpr int kTasks = 200;
  std::mt19937 random(5);
  std::vector<std::unique_ptr<CpuStream>> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(make_worker_stream("random"));
  std::vector<int64_t> values(kTasks, -1);
  std::vector<int64_t> expected(kTasks, -1);
  std::vector<Event> events(kTasks);
  for (size_t i = 0; i < kTasks; ++i) {
    CpuStream& stream = *streams[random() % kStreams];
    std::vector<size_t> inputs;
    for (size_t n = i == 0 ? 0 : random() % 4; n > 0; --n) inputs.push_back(random() % i);
    expected[i] = static_cast<int64_t>(i);
    for (const size_t input : inputs) {
      expected[i] += expected[input] % 1000;
      stream.wait(events[input]);
    }
    const auto delay = std::chrono::microseconds(random() % 200);
    stream.submit([&values, inputs, i, delay] {
      std::this_thread::sleep_for(delay);  // varies the interleaving; the result must not depend
      values[i] = static_cast<int64_t>(i);
      for (const size_t input : inputs) values[i] += values[input] % 1000;
    });
    events[i] = stream.record();
  }
  for (const auto& stream : streams) stream->synchronize();
  EXPECT_EQ(values, expected);
}

TEST(WorkerStream, TakesWorkFromSeveralThreads) {
  const auto stream = make_worker_stream("shared");
  int64_t sum = 0;  // only the worker touches it
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        stream->submit([&sum] { ++sum; });
        if (i % 10 == 0) stream->record().synchronize();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stream->synchronize();
  EXPECT_EQ(sum, 400);
}

TEST(HostEvent, TellsWhenItHappensBeforeLaterWorkAndAtOnceWhenItHas) {
  Gate gate;
  std::atomic<int> told{0};
  const auto stream = make_worker_stream("tells");
  stream->submit([&gate] { gate.pass(); });
  const Event event = stream->record();
  stream->submit([&told] { EXPECT_EQ(told, 1); });
  const auto tell = [&] {
    dynamic_cast<HostEvent&>(*event.state()).on_ready([&](const std::exception_ptr&) { ++told; });
  };
  tell();
  EXPECT_EQ(told, 0);
  gate.open();
  stream->synchronize();
  tell();
  EXPECT_EQ(told, 2);
}

TEST(SlotRing, HandsOutItsSlotsInTurnOnceTheyAreFree) {
  const auto device = make_cpu_device();
  const auto user = device->make_stream("user");
  const auto next = device->make_stream("next");
  std::vector<std::byte> memory(8);
  SlotRing ring;
  ring.add(TensorView{memory.data(), 8, DType::uint8});
  ring.add(device->allocate(16, MemoryCategory::other));

  std::atomic<bool> go = false;
  std::atomic<bool> used = false;
  EXPECT_EQ(ring.take(*user), 0U);
  EXPECT_EQ(ring.view(0, 2, DType::fp32).data, memory.data());
  cpu_stream(*user).submit([&] {
    go.wait(false);
    used = true;
  });
  ring.release(0, user->record());
  EXPECT_EQ(ring.take(*next), 1U);  // free from the start
  next->synchronize();
  EXPECT_EQ(ring.take(*next), 0U);
  EXPECT_EQ(ring.last(), 0U);
  std::atomic<bool> seen = false;
  cpu_stream(*next).submit([&] { seen = used.load(); });
  go = true;
  go.notify_all();
  next->synchronize();
  EXPECT_TRUE(seen);
  ring.synchronize(0);
  EXPECT_THROW(ring.view(1, 5, DType::fp32), InternalError);
  ring.replace(1, device->allocate(32, MemoryCategory::other));
  EXPECT_EQ(ring.view(1, 5, DType::fp32).numel, 5);
}

}  // namespace
}  // namespace zerorun::testing
