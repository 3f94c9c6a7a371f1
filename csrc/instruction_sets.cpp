#include "instruction_sets.hpp"

#include <iterator>
#include <stdexcept>

#ifdef GRADWIRE_X86
#include <cpuid.h>
#endif

namespace gradwire {
namespace {

const InstructionSet built[] = {
    {"plain", plain_passes, plain_codecs, plain_sparse, plain_streams},
#ifdef GRADWIRE_X86
    {"avx2", avx2_passes, avx2_codecs, avx2_sparse, avx2_streams},
    {"avx512", avx512_passes, avx512_codecs, avx512_sparse, avx512_streams},
#endif
#ifdef GRADWIRE_NEON
    {"neon", neon_passes, neon_codecs, neon_sparse, neon_streams},
#endif
};

#ifdef GRADWIRE_X86
// Asks the processor itself: what __builtin_cpu_supports answers depends on the compiler's runtime
// library, and that of some toolchains always answers no.
std::size_t count_here() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) return 1;
    constexpr unsigned wanted = bit_OSXSAVE | bit_AVX | bit_F16C;
    if ((c & wanted) != wanted) return 1;
    unsigned saved = 0, rest = 0;  // the registers that the system keeps between threads
    asm("xgetbv" : "=a"(saved), "=d"(rest) : "c"(0));
    constexpr unsigned halves = 0x6, whole = 0xe6;  // of 256 bits; of 512, and masks
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return 1;
    if ((saved & halves) != halves || (b & bit_AVX2) == 0) return 1;
    constexpr unsigned wide = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    return (saved & whole) == whole && (b & wide) == wide ? 3 : 2;
}
#else
std::size_t count_here() { return std::size(built); }  // every 64-bit ARM processor has NEON
#endif

}  // namespace

std::span<const InstructionSet> instruction_sets() {
    static const std::size_t count = count_here();
    return {built, count};
}

const InstructionSet& set_of(int number) {
    const auto here = instruction_sets();
    if (number < 0 || static_cast<std::size_t>(number) >= here.size())
        throw std::invalid_argument("this machine does not have that instruction set");
    return here[static_cast<std::size_t>(number)];
}

}  // namespace gradwire
