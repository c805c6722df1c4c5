#pragma once

namespace zerorun {

// From now on the calling thread gets about a tenth of a core that others of this process want too,
// and all of one that nobody wants. For work beside the training.
void lower_thread_priority() noexcept;

}  // namespace zerorun
