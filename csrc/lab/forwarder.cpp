#include "forwarder.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace gradwire {
namespace {

constexpr std::size_t header = 10, address = 6, ethernet = 14;  // header: virtio_net_hdr
constexpr std::size_t largest = header + ethernet + 4 + (1 << 16);  // a super-packet
constexpr std::size_t most_addresses = 4096;
constexpr int at_once = 64;  // frames of one port, before others have their turn
constexpr std::int64_t part = 200;  // of a delay, for which frames are collected

std::int64_t read(clockid_t clock) {
    timespec t{};
    clock_gettime(clock, &t);
    return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// Waking up for each frame would take several times as long as its copies.
void pause(std::int64_t ns) {
    const timespec time{0, static_cast<long>(ns)};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
}

std::uint64_t address_at(const char* bytes) {
    std::uint64_t found = 0;
    std::memcpy(&found, bytes, address);
    return found;
}

bool is_for_many(const char* bytes) { return (static_cast<unsigned char>(*bytes) & 1u) != 0; }

}  // namespace

Forwarder::Forwarder(std::vector<int> sockets, const Distance& distance, std::uint64_t seed)
    : sockets_(std::move(sockets)),
      distance_(distance),
      random_(seed),
      room_(largest),
      last_due_(sockets_.size() * sockets_.size(), 0) {}

Forwarded Forwarder::counts() const {
    return {frames_, lost_, refused_, 1e-9 * static_cast<double>(processor_ns_)};
}

void Forwarder::run(int stop) {
    std::vector<pollfd> watched{{stop, POLLIN, 0}};
    for (const int socket : sockets_) watched.push_back({socket, POLLIN, 0});
    for (;;) {
        const std::int64_t now = read(CLOCK_MONOTONIC);
        send_due(now);
        processor_ns_ = read(CLOCK_THREAD_CPUTIME_ID);
        const std::int64_t left =
            waiting_.empty() ? 1'000'000'000 : std::max<std::int64_t>(0, waiting_.front().due - now);
        const timespec timeout{static_cast<time_t>(left / 1'000'000'000),
                               static_cast<long>(left % 1'000'000'000)};
        if (ppoll(watched.data(), watched.size(), &timeout, nullptr) < 0) {
            if (errno == EINTR) continue;
            throw std::system_error(errno, std::generic_category(), "ppoll");
        }
        if (watched[0].revents != 0) return;
        pause(distance_.delay_ns / part);
        for (std::size_t port = 0; port < sockets_.size(); ++port)
            if (watched[port + 1].revents != 0) take(port);
    }
}

// Takes what has come at a port. A port that is down says so once, and has nothing.
void Forwarder::take(std::size_t port) {
    for (int i = 0; i < at_once; ++i) {
        const ssize_t got = recv(sockets_[port], room_.data(), room_.size(), MSG_DONTWAIT);
        if (got < 0) return;
        const auto size = static_cast<std::size_t>(got);
        if (size < header + ethernet) continue;
        const std::int64_t now = read(CLOCK_MONOTONIC);
        const char* const target = room_.data() + header;
        if (port_of_.size() >= most_addresses) port_of_.clear();
        port_of_[address_at(target + address)] = port;
        const auto found = port_of_.find(address_at(target));
        if (!is_for_many(target) && found != port_of_.end()) {
            if (found->second != port) forward(port, found->second, now, size);
            continue;
        }
        for (std::size_t to = 0; to < sockets_.size(); ++to)
            if (to != port) forward(port, to, now, size);
    }
}

void Forwarder::forward(std::size_t from, std::size_t to, std::int64_t now, std::size_t size) {
    ++frames_;
    if (distance_.loss > 0.0 && chance_(random_) < distance_.loss) {
        ++lost_;
        return;
    }
    const double late = static_cast<double>(distance_.jitter_ns) * (2.0 * chance_(random_) - 1.0);
    std::int64_t& last = last_due_[from * sockets_.size() + to];
    last = std::max(last, now + distance_.delay_ns + static_cast<std::int64_t>(late));
    waiting_.push_back({last, order_++, to, {room_.data(), room_.data() + size}});
    std::push_heap(waiting_.begin(), waiting_.end());
}

void Forwarder::send_due(std::int64_t now) {
    while (!waiting_.empty() && waiting_.front().due <= now) {
        std::pop_heap(waiting_.begin(), waiting_.end());
        const Waiting& next = waiting_.back();
        const int socket = sockets_[next.port];
        if (send(socket, next.bytes.data(), next.bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
            ++refused_;
        waiting_.pop_back();
    }
}

}  // namespace gradwire
