// Selection, the update around it, and its inverse.
#include "../half.hpp"
#include "../selection.hpp"
#include "../sparse.hpp"
#include "bindings.hpp"

namespace gradwire {
namespace {

std::pair<float, bool> topk_at(int set, int type, Address x, std::size_t n, std::size_t k,
                               Address index, Address value, float hint) {
    const Passes& passes = passes_of(set);
    const Sparse& sparse = sparse_of(set);
    const nb::gil_scoped_release release;
    const Outcome out = topk(passes, sparse, static_cast<Float>(type), at<void>(x), n,
                             {at<std::int32_t>(index), at<float>(value), k, hint});
    return {out.hint, out.finite};
}

std::pair<std::size_t, bool> reaching_at(int set, int type, Address x, std::size_t n, float least,
                                         std::size_t room, Address index, Address value) {
    const Passes& passes = passes_of(set);
    const nb::gil_scoped_release release;
    return reaching(passes, static_cast<Float>(type), at<void>(x), n, bits_of(least), room,
                    at<std::int32_t>(index), at<float>(value));
}

// One parameter: type, gradient, u, v, n; rule, mask, k, index, value, velocities, hint, journal.
using UpdateRow = std::tuple<int, Address, Address, Address, std::size_t, Rule, bool, std::size_t,
                             Address, Address, Address, float, Address>;

std::pair<std::vector<float>, bool> update_topk_at(int set, const std::vector<UpdateRow>& rows) {
    const Passes& passes = passes_of(set);
    const Sparse& sparse = sparse_of(set);
    const nb::gil_scoped_release release;
    std::pair<std::vector<float>, bool> found{{}, true};
    for (const auto& [type, gradient, u, v, n, rule, mask, k, index, value, velocities, hint,
                      journal] : rows) {
        const Outcome out =
            update_topk(passes, sparse, static_cast<Float>(type), at<void>(gradient), at<float>(u),
                        at<float>(v), n, recurrence_of(rule), mask,
                        {at<std::int32_t>(index), at<float>(value), k, hint},
                        at<float>(velocities), at<Journal>(journal));
        found.first.push_back(out.hint);
        found.second &= out.finite;
    }
    return found;
}

void undo_at(int set, int type, Address gradient, Address u, Address v, std::size_t n, int mode,
             float momentum, float scale) {
    const Passes& passes = passes_of(set);
    const nb::gil_scoped_release release;
    passes.undo(static_cast<Float>(type), at<void>(gradient), at<float>(u), at<float>(v), n,
                {static_cast<Mode>(mode), momentum, scale});
}

void restore_at(Address u, Address v, Address index, Address value, Address velocities,
                std::size_t k) {
    const nb::gil_scoped_release release;
    restore(at<float>(u), at<float>(v), at<std::int32_t>(index), at<float>(value),
            at<float>(velocities), k);
}

Address address_of(const Journal& journal) { return reinterpret_cast<Address>(&journal); }

void put_back_at(const Journal& journal, Address u, Address v) {
    const nb::gil_scoped_release release;
    journal.put_back(at<float>(u), at<float>(v));
}

}  // namespace

void bind_selection(nb::module_& m) {
    nb::class_<Journal>(m, "Journal")
        .def(nb::init<>())
        .def("address", &address_of)
        .def("elements", &Journal::elements)
        .def("fits", &Journal::fits)
        .def("put_back", &put_back_at);
    m.def("fallbacks", &fallbacks);
    m.def("topk", &topk_at);
    m.def("reaching", &reaching_at);
    m.def("update_topk", &update_topk_at);
    m.def("undo", &undo_at);
    m.def("restore", &restore_at);
}

}  // namespace gradwire
