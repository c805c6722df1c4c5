#include "examples/train/stop_signal.h"

namespace zerorun::train {

namespace {

// A signal handler can reach nothing but globals.
volatile std::sig_atomic_t received_signal = 0;

extern "C" void remember_signal(int signal) { received_signal = signal; }

}  // namespace

StopSignal::StopSignal() {
  received_signal = 0;
  struct sigaction action = {};
  action.sa_handler = remember_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, &previous_interrupt_);
  ::sigaction(SIGTERM, &action, &previous_terminate_);
}

StopSignal::~StopSignal() {
  ::sigaction(SIGINT, &previous_interrupt_, nullptr);
  ::sigaction(SIGTERM, &previous_terminate_, nullptr);
}

int StopSignal::received() const { return received_signal; }

}  // namespace zerorun::train
