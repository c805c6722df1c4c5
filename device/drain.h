#pragma once

namespace zerorun {

// Waits for a stream or event before memory that its work uses is freed, and ignores its errors.
template <typename Work>
void drain(Work& work) noexcept {
  try {
    work.synchronize();
  } catch (...) {  // NOLINT(bugprone-empty-catch): whoever waits for results gets the error
  }
}

}  // namespace zerorun
