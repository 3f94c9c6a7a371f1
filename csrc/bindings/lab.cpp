// The lab's switch that delays frames.
#include "../lab/forwarder.hpp"
#include "bindings.hpp"

namespace gradwire {

void bind_lab(nb::module_& m) {
    nb::class_<Forwarder>(m, "Forwarder")
        .def("__init__",
             [](Forwarder* self, std::vector<int> sockets, std::int64_t delay_ns,
                std::int64_t jitter_ns, double loss, std::uint64_t seed) {
                 new (self)
                     Forwarder(std::move(sockets), Distance{delay_ns, jitter_ns, loss}, seed);
             })
        .def("run", &Forwarder::run, nb::call_guard<nb::gil_scoped_release>())
        .def("counts", [](const Forwarder& self) {
            const Forwarded found = self.counts();
            return std::tuple(found.frames, found.lost, found.refused, found.processor_seconds);
        });
}

}  // namespace gradwire
