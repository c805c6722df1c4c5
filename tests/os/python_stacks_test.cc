#include "os/python_stacks.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>

#include "os/process_identity.h"
#include "tests/common.h"

namespace zerorun::python_stacks_test {
namespace {

constexpr auto kLong = 60s;

int file = -1;
std::atomic<bool> seen = false;

void write_thread(int /*signal*/) {
  const std::string_view text = gettid() == getpid() ? "main thread" : "another thread";
  if (write(file, text.data(), text.size()) < 0) _exit(1);
  seen = true;
}

// What a process with a handler of this name, and another thread, does when it is asked.
std::string answer(bool blocks) {
  file = memfd_create(kPythonStackFile, MFD_CLOEXEC);
  signal(python_stack_signal(), write_thread);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, python_stack_signal());
  std::thread other([&] {
    while (!seen) poll(nullptr, 0, 1);
  });
  if (blocks) pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::string text;
  std::thread asking([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    text = python_stacks_of(this_process(), blocks ? 200ms : kLong);
  });
  asking.join();
  if (blocks) pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  other.join();
  signal(python_stack_signal(), SIG_DFL);
  close(file);
  seen = false;
  return text;
}

TEST(PythonStacks, ComeFromTheHandlerOfTheMainThread) { EXPECT_EQ(answer(false), "main thread"); }

// Only the main thread is known to have a stack for handlers.
TEST(PythonStacks, NoOtherThreadAnswersForTheMainOne) { EXPECT_EQ(answer(true), ""); }

TEST(PythonStacks, AProcessThatDoesNotHandleTheSignalGetsNone) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  ProcessIdentity process = this_process();
  process.pid = child;
  process.start_time = read_process_stat(child)->start_time;
  EXPECT_EQ(python_stacks_of(process, kLong), "");
  EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0);  // it lives
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace zerorun::python_stacks_test
