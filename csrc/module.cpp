// The Python module gradwire._native, which takes addresses and sizes. This file chooses the
// instruction set; the functions are in bindings/, by family.
#include <stdexcept>

#include "bindings/bindings.hpp"

#ifdef GRADWIRE_X86
#include <cpuid.h>
#endif

namespace gradwire {
namespace {

int best_instruction_set() {
#ifdef GRADWIRE_X86
    unsigned a = 0, b = 0, c = 0, d = 0;
    __builtin_cpu_init();
    const bool half = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1u << 29)) != 0;  // F16C
    if (half && __builtin_cpu_supports("avx2")) {
        const bool wide = __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        return wide ? 2 : 1;
    }
#endif
    return 0;
}

void stream_update_at(int set, Address gradient, Address u, Address v, std::size_t n,
                      float momentum) {
    const Passes& passes = passes_of(set);
    const nb::gil_scoped_release release;
    passes.stream_update(at<float>(gradient), at<float>(u), at<float>(v), n, momentum);
}

std::uint32_t stream_read_at(int set, Address x, std::size_t n) {
    const Passes& passes = passes_of(set);
    const nb::gil_scoped_release release;
    return passes.stream_read(at<float>(x), n);
}

}  // namespace

const Passes& passes_of(int set) {
    static const int best = best_instruction_set();
    if (set < 0 || set > best)
        throw std::invalid_argument("this machine does not have that instruction set");
#ifdef GRADWIRE_X86
    if (set == 2) return avx512_passes;
    if (set == 1) return avx2_passes;
#endif
    return plain_passes;
}

const Codecs& codecs_of(int set) {
    const Passes& passes = passes_of(set);  // checks the number
#ifdef GRADWIRE_X86
    if (&passes == &avx512_passes) return avx512_codecs;
    if (&passes == &avx2_passes) return avx2_codecs;
#endif
    static_cast<void>(passes);
    return plain_codecs;
}

const Sparse& sparse_of(int set) {
    const Passes& passes = passes_of(set);  // checks the number
#ifdef GRADWIRE_X86
    if (&passes == &avx512_passes) return avx512_sparse;
    if (&passes == &avx2_passes) return avx2_sparse;
#endif
    static_cast<void>(passes);
    return plain_sparse;
}

}  // namespace gradwire

NB_MODULE(_native, m) {
    using namespace gradwire;
    m.def("best_instruction_set", &best_instruction_set);
    m.def("stream_update", &stream_update_at);
    m.def("stream_read", &stream_read_at);
    bind_selection(m);
    bind_sums(m);
    bind_codes(m);
    bind_streams(m);
    bind_timeline(m);
    bind_network(m);
#ifdef __linux__
    bind_lab(m);
#endif
}
