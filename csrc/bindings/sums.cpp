// Sums of payloads, the places in sparse ones, and casts.
#include "../crowds.hpp"
#include "../indices.hpp"
#include "../sparse.hpp"
#include "bindings.hpp"

namespace gradwire {
namespace {

void add_at(Address v, Address index, Address value, std::size_t k, float factor) {
    const nb::gil_scoped_release release;
    add(at<float>(v), at<std::int32_t>(index), at<float>(value), k, factor);
}

std::size_t first_violation_at(Address index, std::size_t count, std::size_t n) {
    const nb::gil_scoped_release release;
    return first_violation(at<std::int32_t>(index), count, n);
}

void encode_indices_at(int code, std::size_t n, std::size_t k, Address index, Address section,
                       std::size_t bytes) {
    const nb::gil_scoped_release release;
    encode_indices(static_cast<IndexCode>(code), {n, k}, at<std::int32_t>(index),
                   at<std::uint8_t>(section), bytes);
}

std::size_t decode_indices_at(int set, int code, std::size_t n, std::size_t k, Address section,
                              std::size_t bytes, Address index) {
    const Sparse& sparse = sparse_of(set);
    const nb::gil_scoped_release release;
    return decode_indices(sparse, static_cast<IndexCode>(code), {n, k}, at<std::uint8_t>(section),
                          bytes, at<std::int32_t>(index));
}

// n, k, places, values; code, section, bytes; type, out, sent, residual.
using EntriesRow = std::tuple<std::size_t, std::size_t, Address, Address, int, Address,
                              std::size_t, int, Address, Address, Address>;

// Rounding makes infinity of what is beyond a format's range: makes it the largest number.
void clamp(std::uint16_t* out, std::size_t k, std::uint16_t infinity) {
    for (std::size_t j = 0; j < k; ++j) out[j] -= (out[j] & 0x7fffu) == infinity;
}

// Writes a payload and returns true if its places are a valid list; else returns false.
bool write_entries(const Passes& passes, const EntriesRow& row) {
    const auto& [n, k, places, values, code, section, bytes, type, out, sent, residual] = row;
    const auto* const index = at<std::int32_t>(places);
    if (first_violation(index, k, n) < k) return false;
    encode_indices(static_cast<IndexCode>(code), {n, k}, index, at<std::uint8_t>(section), bytes);
    const auto to = static_cast<Float>(type);
    passes.cast(Float::fp32, to, at<void>(values), at<void>(out), k, false);
    if (to != Float::fp32) clamp(at<std::uint16_t>(out), k, to == Float::bf16 ? 0x7f80 : 0x7c00);
    if (sent == 0) return true;
    passes.cast(to, Float::fp32, at<void>(out), at<void>(sent), k, false);
    if (residual == 0) return true;
    auto* const lost = at<float>(values);
    for (std::size_t j = 0; j < k; ++j) lost[j] -= at<float>(sent)[j];  // exact: it is a float
    add(at<float>(residual), index, lost, k, 1.0f);
    return true;
}

// Stops at the first row whose places are not a valid list, and returns its index; returns the
// number of rows if there is none.
std::size_t write_entries_at(int set, const std::vector<EntriesRow>& rows) {
    const Passes& passes = passes_of(set);
    const nb::gil_scoped_release release;
    std::size_t done = 0;
    while (done < rows.size() && write_entries(passes, rows[done])) ++done;
    return done;
}

using Part = std::tuple<int, std::size_t, std::size_t, std::size_t>;  // code, n, k, bytes

CrowdsCode crowds_code(const std::tuple<Part, Part, Part>& parts) {
    const auto list = [](const Part& part) -> CodedList {
        const auto& [code, n, k, bytes] = part;
        return {static_cast<IndexCode>(code), {n, k}, bytes};
    };
    const auto& [crowded, full, thin] = parts;
    return {list(crowded), list(full), list(thin)};
}

std::tuple<std::size_t, std::size_t, std::size_t> count_crowds_at(Address place, std::size_t k) {
    const nb::gil_scoped_release release;
    const Crowds found = count_crowds(at<std::int32_t>(place), k);
    return {found.crowded, found.full, found.thin};
}

bool encode_crowds_at(const std::tuple<Part, Part, Part>& parts, Address place, std::size_t k,
                      Address section) {
    const nb::gil_scoped_release release;
    return encode_crowds(crowds_code(parts), at<std::int32_t>(place), k,
                         at<std::uint8_t>(section));
}

int decode_crowds_at(int set, const std::tuple<Part, Part, Part>& parts, Address section,
                     std::size_t k, Address place) {
    const Sparse& sparse = sparse_of(set);
    const nb::gil_scoped_release release;
    return static_cast<int>(decode_crowds(sparse, crowds_code(parts), at<std::uint8_t>(section), k,
                                          at<std::int32_t>(place)));
}

void accumulate_at(int set, int type, Address target, std::size_t n,
                   const std::vector<std::tuple<Address, Address, std::size_t, int>>& payloads,
                   float divisor, bool stream) {
    const Sparse& sparse = sparse_of(set);
    const nb::gil_scoped_release release;
    std::vector<SparsePayload> list;
    for (const auto& [index, value, count, kind] : payloads) {
        list.push_back(
            {at<std::int32_t>(index), at<void>(value), count, static_cast<Float>(kind)});
    }
    sparse.accumulate(static_cast<Float>(type), at<void>(target), n, list.data(), list.size(),
                      divisor, stream);
}

// Code, section, bytes, value, k, type of the values.
using CodedPayload = std::tuple<int, Address, std::size_t, Address, std::size_t, int>;

// Type and address of the target, n, payloads, divisor, stream.
using CodedSum = std::tuple<int, Address, std::size_t, std::vector<CodedPayload>, float, bool>;

// Writes the sum and returns true if the places of every payload are valid lists; else returns
// false.
bool accumulate_coded(const Sparse& sparse, const CodedSum& row) {
    const auto& [type, target, n, payloads, divisor, stream] = row;
    std::size_t total = 0;
    for (const auto& payload : payloads) total += std::get<4>(payload);
    thread_local std::vector<std::int32_t> places;  // kept: fresh pages cost more than the work
    if (places.size() < total) places.resize(total);
    std::vector<SparsePayload> list;
    std::int32_t* own = places.data();
    for (const auto& [code, section, bytes, value, k, kind] : payloads) {
        if (decode_indices(sparse, static_cast<IndexCode>(code), {n, k}, at<std::uint8_t>(section),
                           bytes, own) != k)
            return false;
        list.push_back({own, at<void>(value), k, static_cast<Float>(kind)});
        own += k;
    }
    sparse.accumulate(static_cast<Float>(type), at<void>(target), n, list.data(), list.size(),
                      divisor, stream);
    return true;
}

// Stops at the first row with a payload whose places are not a valid list, and returns its index;
// returns the number of rows if there is none.
std::size_t accumulate_coded_at(int set, const std::vector<CodedSum>& rows) {
    const Sparse& sparse = sparse_of(set);
    const nb::gil_scoped_release release;
    std::size_t done = 0;
    while (done < rows.size() && accumulate_coded(sparse, rows[done])) ++done;
    return done;
}

void accumulate_dense_at(int set, int type, Address target, std::size_t n,
                         const std::vector<std::pair<Address, int>>& payloads, float divisor,
                         bool stream) {
    const Passes& passes = passes_of(set);
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    std::vector<DensePayload> list;
    std::vector<const void*> values;
    bool alike = true;
    for (const auto& [value, kind] : payloads) {
        list.push_back({at<void>(value), static_cast<Float>(kind)});
        values.push_back(at<void>(value));
        alike &= kind == payloads.front().second;
    }
    const auto out = static_cast<Float>(type);
    if (alike && !list.empty()) {
        codecs.accumulate_dense(list.front().type, out, at<void>(target), n, values.data(),
                                values.size(), divisor, stream);
    } else {
        accumulate_dense(passes, out, at<void>(target), n, list, divisor, stream);
    }
}

bool cast_at(int set, int from, int to, Address source, Address target, std::size_t n,
             bool stream) {
    const Passes& passes = passes_of(set);
    const nb::gil_scoped_release release;
    return passes.cast(static_cast<Float>(from), static_cast<Float>(to), at<void>(source),
                at<void>(target), n, stream);
}

void add_cast_at(int set, int type, Address source, Address sum, std::size_t n, float factor) {
    const Passes& passes = passes_of(set);
    const nb::gil_scoped_release release;
    passes.add(static_cast<Float>(type), at<void>(source), at<float>(sum), n, factor);
}

bool is_finite_at(int set, int type, Address x, std::size_t n) {
    const Passes& passes = passes_of(set);
    const nb::gil_scoped_release release;
    return passes.is_finite(static_cast<Float>(type), at<void>(x), n);
}

}  // namespace

void bind_sums(nb::module_& m) {
    m.def("add", &add_at);
    m.def("first_violation", &first_violation_at);
    m.def("encode_indices", &encode_indices_at);
    m.def("write_entries", &write_entries_at);
    m.def("decode_indices", &decode_indices_at);
    m.def("count_crowds", &count_crowds_at);
    m.def("encode_crowds", &encode_crowds_at);
    m.def("decode_crowds", &decode_crowds_at);
    m.def("accumulate", &accumulate_at);
    m.def("accumulate_coded", &accumulate_coded_at);
    m.def("accumulate_dense", &accumulate_dense_at);
    m.def("cast", &cast_at);
    m.def("add_cast", &add_cast_at);
    m.def("is_finite", &is_finite_at);
}

}  // namespace gradwire
