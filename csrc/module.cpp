// The Python module gradwire._native: addresses and sizes in, nothing checked here.
// The face in gradwire/kernels checks dtypes, devices, layouts and sizes, and is the only caller.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>

#include "codecs.hpp"
#include "half.hpp"
#include "indices.hpp"
#include "kernels.hpp"
#include "selection.hpp"
#include "sparse.hpp"

#ifdef GRADWIRE_X86
#include <cpuid.h>
#endif

namespace nb = nanobind;
using namespace gradwire;

void bind_streams(nb::module_& m);

namespace {

using Address = std::uintptr_t;

// Numbers of the instruction sets: 0 plain, 1 AVX2, 2 AVX-512.
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

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

std::pair<float, bool> topk_at(int set, int type, Address x, std::size_t n, std::size_t k,
                               Address index, Address value, float hint) {
    const Passes& passes = passes_of(set);
    const Sparse& sparse = sparse_of(set);
    const nb::gil_scoped_release release;
    const Outcome out = topk(passes, sparse, static_cast<Float>(type), at<void>(x), n,
                             {at<std::int32_t>(index), at<float>(value), k, hint});
    return {out.hint, out.finite};
}

std::size_t count_at(int set, int type, Address x, std::size_t n, float least) {
    const Passes& passes = passes_of(set);
    const nb::gil_scoped_release release;
    return passes.count(static_cast<Float>(type), at<void>(x), n, bits_of(least));
}

std::pair<std::size_t, bool> reaching_at(int set, int type, Address x, std::size_t n, float least,
                                         std::size_t room, Address index, Address value) {
    const Passes& passes = passes_of(set);
    const nb::gil_scoped_release release;
    return reaching(passes, static_cast<Float>(type), at<void>(x), n, bits_of(least), room,
                    at<std::int32_t>(index), at<float>(value));
}

std::pair<float, bool> update_topk_at(int set, int type, Address gradient, Address u, Address v,
                                      std::size_t n, int mode, float momentum, float scale,
                                      bool mask, std::size_t k, Address index, Address value,
                                      Address velocities, float hint, Address journal) {
    const Passes& passes = passes_of(set);
    const Sparse& sparse = sparse_of(set);
    const nb::gil_scoped_release release;
    const Outcome out =
        update_topk(passes, sparse, static_cast<Float>(type), at<void>(gradient), at<float>(u),
                    at<float>(v), n, {static_cast<Mode>(mode), momentum, scale}, mask,
                    {at<std::int32_t>(index), at<float>(value), k, hint}, at<float>(velocities),
                    at<Journal>(journal));
    return {out.hint, out.finite};
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

void add_at(Address v, Address index, Address value, std::size_t k, float factor) {
    const nb::gil_scoped_release release;
    add(at<float>(v), at<std::int32_t>(index), at<float>(value), k, factor);
}

Address address_of(const Journal& journal) { return reinterpret_cast<Address>(&journal); }

void put_back_at(const Journal& journal, Address u, Address v) {
    const nb::gil_scoped_release release;
    journal.put_back(at<float>(u), at<float>(v));
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

void accumulate_at(int set, int type, Address target, std::size_t n,
                   const std::vector<std::tuple<Address, Address, std::size_t, int>>& payloads,
                   float divisor) {
    const Sparse& sparse = sparse_of(set);
    const nb::gil_scoped_release release;
    std::vector<SparsePayload> list;
    for (const auto& [index, value, count, kind] : payloads) {
        list.push_back(
            {at<std::int32_t>(index), at<void>(value), count, static_cast<Float>(kind)});
    }
    accumulate(sparse, static_cast<Float>(type), at<void>(target), n, list, divisor);
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
        accumulate_dense(passes, out, at<void>(target), n, list, divisor);
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

bool encode_at(int set, int format, int type, Address x, std::size_t n,
               std::tuple<std::uint32_t, std::uint32_t, std::uint32_t> noise, float given_scale,
               Address codes, Address scales, bool stream) {
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    const auto [first, second, shift] = noise;
    return codecs.encode(static_cast<Format>(format), static_cast<Float>(type), at<void>(x), 0, n,
                         {first, second, shift}, given_scale, at<std::uint8_t>(codes),
                         at<float>(scales), stream);
}

bool update_codes_at(int set, int format, int type, Address gradient, Address u, Address v,
                     std::size_t n, std::tuple<int, float, float> recurrence,
                     std::tuple<std::uint32_t, std::uint32_t, std::uint32_t> noise, Address codes,
                     Address scales, float hint, Address journal) {
    const Passes& passes = passes_of(set);
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    const auto [mode, momentum, scale] = recurrence;
    const auto [first, second, shift] = noise;
    auto* const kept = at<Journal>(journal);
    Watch watch{};
    if (kept != nullptr) {
        kept->begin(at<float>(u), at<float>(v), n);
        watch = kept->watch(journal_limit(hint));
    }
    const bool finite = update_codes(
        passes, codecs, static_cast<Format>(format), static_cast<Float>(type), at<void>(gradient),
        at<float>(u), at<float>(v), n, {static_cast<Mode>(mode), momentum, scale},
        {first, second, shift}, at<std::uint8_t>(codes), at<float>(scales),
        kept != nullptr ? &watch : nullptr);
    if (kept != nullptr && kept->failed()) throw std::bad_alloc();
    return finite;
}

void accumulate_codes_at(int set, int format, int type, Address target, std::size_t n,
                         const std::vector<std::pair<Address, Address>>& payloads, float divisor,
                         bool stream) {
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    std::vector<Codes> list;
    for (const auto& [codes, scales] : payloads)
        list.push_back({at<std::uint8_t>(codes), at<float>(scales)});
    codecs.accumulate(static_cast<Format>(format), static_cast<Float>(type), at<void>(target), n,
                      list.data(), list.size(), divisor, stream);
}

void add_codes_at(int set, int format, Address v, std::size_t n, Address codes, Address scales,
                  float factor) {
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    codecs.add(static_cast<Format>(format), at<float>(v), n,
               {at<std::uint8_t>(codes), at<float>(scales)}, factor);
}

std::tuple<double, double, std::size_t, bool> pack_signs_at(
    int set, int type, Address x, std::size_t n,
    std::tuple<std::uint32_t, std::uint32_t, std::uint32_t> noise, bool throws, Address bits) {
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    const auto [first, second, shift] = noise;
    const Noise dice{first, second, shift};
    const SignSums sums = codecs.pack_signs(static_cast<Float>(type), at<void>(x), n,
                                            throws ? &dice : nullptr, at<std::uint8_t>(bits));
    return {sums.below, sums.above, sums.count_below, sums.finite};
}

void accumulate_signs_at(int set, int type, Address target, std::size_t n,
                         const std::vector<std::tuple<Address, Address, std::size_t>>& payloads,
                         float divisor, bool stream) {
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    std::vector<Signs> list;
    for (const auto& [bits, values, count] : payloads)
        list.push_back({at<std::uint8_t>(bits), at<float>(values), count});
    codecs.accumulate_signs(static_cast<Float>(type), at<void>(target), n, list.data(),
                            list.size(), divisor, stream);
}

void add_signs_at(int set, Address v, std::size_t n, Address bits, Address values,
                  std::size_t count, float factor) {
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    codecs.add_signs(at<float>(v), n, {at<std::uint8_t>(bits), at<float>(values), count}, factor);
}

// The largest magnitude (inf or NaN if x is not finite), and the sum of squares if it is wanted.
std::pair<float, double> largest_at(int set, int type, Address x, std::size_t n, bool squares) {
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    double sum = 0.0;
    const std::uint32_t bits =
        codecs.largest(static_cast<Float>(type), at<void>(x), n, squares ? &sum : nullptr);
    return {float_of(bits), sum};
}

void strata_at(int set, std::tuple<std::uint32_t, std::uint32_t, std::uint32_t> noise,
               std::size_t n, std::size_t k, Address places) {
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    const auto [one, two, shift] = noise;
    strata(codecs, {one, two, shift}, n, k, at<std::int32_t>(places));
}

void noise_at(int set, std::tuple<std::uint32_t, std::uint32_t, std::uint32_t> noise,
              std::size_t first, std::size_t n, Address target) {
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    const auto [one, two, shift] = noise;
    codecs.noise({one, two, shift}, first, n, at<std::uint32_t>(target));
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

NB_MODULE(_native, m) {
    nb::class_<Journal>(m, "Journal")
        .def(nb::init<>())
        .def("address", &address_of)
        .def("elements", &Journal::elements)
        .def("fits", &Journal::fits)
        .def("put_back", &put_back_at);
    bind_streams(m);
    m.def("best_instruction_set", &best_instruction_set);
    m.def("fallbacks", &fallbacks);
    m.def("topk", &topk_at);
    m.def("count", &count_at);
    m.def("reaching", &reaching_at);
    m.def("update_topk", &update_topk_at);
    m.def("undo", &undo_at);
    m.def("restore", &restore_at);
    m.def("add", &add_at);
    m.def("first_violation", &first_violation_at);
    m.def("encode_indices", &encode_indices_at);
    m.def("decode_indices", &decode_indices_at);
    m.def("accumulate", &accumulate_at);
    m.def("accumulate_dense", &accumulate_dense_at);
    m.def("cast", &cast_at);
    m.def("add_cast", &add_cast_at);
    m.def("is_finite", &is_finite_at);
    m.def("encode", &encode_at);
    m.def("update_codes", &update_codes_at);
    m.def("accumulate_codes", &accumulate_codes_at);
    m.def("add_codes", &add_codes_at);
    m.def("pack_signs", &pack_signs_at);
    m.def("accumulate_signs", &accumulate_signs_at);
    m.def("add_signs", &add_signs_at);
    m.def("largest", &largest_at);
    m.def("noise", &noise_at);
    m.def("strata", &strata_at);
    m.def("stream_update", &stream_update_at);
    m.def("stream_read", &stream_read_at);
}
