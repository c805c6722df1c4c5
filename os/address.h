#pragma once

#include <string>

namespace zerorun {

// True for addresses that every host takes for itself, and names that mean one ("localhost"). A
// host's own name may have such an address on that host alone, so names are not looked up.
bool is_loopback(const std::string& host);

// True when this host looks `host` up as an address of the loopback. Throws CommError when it has
// no address.
bool resolves_to_loopback(const std::string& host);

// True if `host`, a name or address, is of this machine. A name that nobody knows is not.
bool is_own_address(const std::string& host);

// The address that means all of this host's, of the family of `host`.
std::string any_address_like(const std::string& host);

// This host's address on the way to `host`, which other hosts reach as well: not its loopback
// unless that is what `host` says. Throws CommError when there is no way.
std::string own_address_towards(const std::string& host);

// The address of a network interface of this host, or the one that `name` says if it is this
// host's; as numbers. Of an interface with several, one of the family of `like` if that is not
// empty, and IPv4 before IPv6. Throws CommError for anything else.
std::string own_address_of(const std::string& name, const std::string& like);

}  // namespace zerorun
