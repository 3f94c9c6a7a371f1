// The Python module gradwire._native, which takes addresses and sizes. Its functions are in
// bindings/, by family.
#include "bindings/bindings.hpp"

namespace gradwire {
namespace {

nb::list names_of_sets() {
    nb::list names;
    for (const InstructionSet& set : instruction_sets()) names.append(set.name);
    return names;
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

void stream_halve_at(int set, Address x, Address target, std::size_t n) {
    const Passes& passes = passes_of(set);
    const nb::gil_scoped_release release;
    passes.stream_halve(at<float>(x), at<float>(target), n);
}

}  // namespace
}  // namespace gradwire

NB_MODULE(_native, m) {
    using namespace gradwire;
    m.def("instruction_sets", &names_of_sets);
    m.def("stream_update", &stream_update_at);
    m.def("stream_read", &stream_read_at);
    m.def("stream_halve", &stream_halve_at);
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
