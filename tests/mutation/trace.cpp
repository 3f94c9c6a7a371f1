// Which blocks of the core have run: the compiler calls __sanitizer_cov_trace_pc at the start of each.
// Two threads may meet here; then a block is told twice.
#include <cstddef>
#include <cstdint>

extern "C" {

extern const char __ehdr_start __attribute__((visibility("hidden")));  // where the file is loaded

constexpr std::size_t most = std::size_t{1} << 26;
static std::uint8_t has_run[most];
static std::uint32_t blocks[most / 16];
static std::size_t count = 0;

__attribute__((visibility("default"), no_sanitize_coverage)) void __sanitizer_cov_trace_pc() {
    const auto block = static_cast<std::size_t>(
        static_cast<const char*>(__builtin_return_address(0)) - &__ehdr_start);
    if (block < most && !has_run[block] && count < most / 16) {
        has_run[block] = 1;
        blocks[count++] = static_cast<std::uint32_t>(block);
    }
}

// How many blocks have run since the last call; *told is where they stand until the next.
__attribute__((visibility("default"), no_sanitize_coverage)) std::size_t trace_taken(
    const std::uint32_t** told) {
    const std::size_t taken = count;
    for (std::size_t i = 0; i < taken; i++) has_run[blocks[i]] = 0;
    *told = blocks;
    count = 0;
    return taken;
}
}
