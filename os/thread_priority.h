#pragma once

namespace zerorun {

// Lowers the priority of the calling thread, for background work during training: it gets about a
// tenth of a core that other threads also use, and all of an idle core.
void lower_thread_priority() noexcept;

}  // namespace zerorun
