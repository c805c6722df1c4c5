#pragma once

#include "launcher/control/control_message.h"
#include "launcher/hosts/cluster.h"
#include "launcher/job.h"

namespace zerorun {

// Encode and decode the cluster and the meeting that the coordinator sends to the launcher of one
// host.

ControlMessage encode_begin(const Cluster& cluster, const Meeting& meeting, int node_rank);
// Both throw CommError for invalid messages.
Cluster decode_cluster(const ControlMessage& begin);
Meeting decode_meeting(const ControlMessage& message);

std::string encode_slots(const std::vector<int>& slots);
std::vector<int> decode_slots(const std::string& text);

}  // namespace zerorun
