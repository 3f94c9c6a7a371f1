// Shared by all bindings. They check nothing: the face in gradwire/kernels checks dtypes, devices,
// layouts and sizes, and is the only caller.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "../instruction_sets.hpp"
#include "../interrupt.hpp"

namespace gradwire {

namespace nb = nanobind;

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

// A recurrence: the number of its mode, the factor of its state (momentum), and the factor of the
// gradient (scale).
using Rule = std::tuple<int, float, float>;

inline Recurrence recurrence_of(const Rule& rule) {
    const auto [mode, momentum, scale] = rule;
    return {static_cast<Mode>(mode), momentum, scale};
}

// Lets long loops, which run without the GIL, check whether Python has a signal to handle, such as
// Ctrl-C. The exception of its handler then ends the call. Only the main thread handles signals;
// other threads go on.
inline Interrupt python_signals() {
    return Interrupt([] {
        const nb::gil_scoped_acquire held;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    });
}

// The tables of an instruction set, by its number. Throw std::invalid_argument as set_of does.
inline const Passes& passes_of(int set) { return set_of(set).passes; }
inline const Codecs& codecs_of(int set) { return set_of(set).codecs; }
inline const Sparse& sparse_of(int set) { return set_of(set).sparse; }
inline const Streams& streams_of(int set) { return set_of(set).streams; }

void bind_selection(nb::module_& m);
void bind_sums(nb::module_& m);
void bind_codes(nb::module_& m);
void bind_streams(nb::module_& m);
void bind_timeline(nb::module_& m);
void bind_network(nb::module_& m);
#ifdef __linux__
void bind_lab(nb::module_& m);
#endif

}  // namespace gradwire
