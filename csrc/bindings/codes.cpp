// Codes of quantizers, signs, and the random numbers of both.
#include "../half.hpp"
#include "../selection.hpp"
#include "bindings.hpp"

namespace gradwire {
namespace {

// Two keys and a shift.
using Dice = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;

Noise noise_of(const Dice& dice) {
    const auto [first, second, shift] = dice;
    return {first, second, shift};
}

bool encode_at(int set, int format, int type, Address x, std::size_t n, Dice dice,
               float given_scale, Address codes, Address scales, bool stream) {
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    return codecs.encode(static_cast<Format>(format), static_cast<Float>(type), at<void>(x), 0, n,
                         noise_of(dice), given_scale, at<std::uint8_t>(codes),
                         at<float>(scales), stream);
}

// One parameter: format, type, gradient, u, v, n; rule, dice, codes, scales, hint, journal.
using CodesRow = std::tuple<int, int, Address, Address, Address, std::size_t, Rule, Dice, Address,
                             Address, float, Address>;

bool update_codes_at(int set, const std::vector<CodesRow>& rows) {
    const Passes& passes = passes_of(set);
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    bool finite = true;
    for (const auto& [format, type, gradient, u, v, n, rule, dice, codes, scales, hint, journal] :
         rows) {
        auto* const kept = at<Journal>(journal);
        Watch watch{};
        if (kept != nullptr) {
            kept->begin(at<float>(u), at<float>(v), n);
            watch = kept->watch(journal_limit(hint));
        }
        finite &= update_codes(passes, codecs, static_cast<Format>(format),
                               static_cast<Float>(type), at<void>(gradient), at<float>(u),
                               at<float>(v), n, recurrence_of(rule), noise_of(dice),
                               at<std::uint8_t>(codes), at<float>(scales),
                               kept != nullptr ? &watch : nullptr);
        if (kept != nullptr && kept->failed()) throw std::bad_alloc();
    }
    return finite;
}

// scale, beta1, 1 - beta1, beta2, 1 - beta2, root, eps, factor.
using Step = std::tuple<float, float, float, float, float, float, float, float>;

AdamStep step_of(const Step& how) {
    return std::apply([](auto... number) { return AdamStep{number...}; }, how);
}

bool adam_at(int set, int type, Address gradient, Address m, Address q, Address v, std::size_t n,
             Step how) {
    const Passes& passes = passes_of(set);
    const nb::gil_scoped_release release;
    return passes.adam(static_cast<Float>(type), at<void>(gradient), at<float>(m), at<float>(q),
                       at<float>(v), n, step_of(how));
}

void undo_adam_at(int set, int type, Address gradient, Address m, Address q, Address v,
                  std::size_t n, Step how) {
    const Passes& passes = passes_of(set);
    const nb::gil_scoped_release release;
    passes.undo_adam(static_cast<Float>(type), at<void>(gradient), at<float>(m), at<float>(q),
                     at<float>(v), n, step_of(how));
}

// One parameter: format, type, gradient, m, q, v, n; step, dice, codes, scales.
using AdamRow = std::tuple<int, int, Address, Address, Address, Address, std::size_t, Step, Dice,
                           Address, Address>;

bool adam_codes_at(int set, const std::vector<AdamRow>& rows) {
    const Passes& passes = passes_of(set);
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    bool finite = true;
    for (const auto& [format, type, gradient, m, q, v, n, how, dice, codes, scales] : rows)
        finite &= adam_codes(passes, codecs, static_cast<Format>(format), static_cast<Float>(type),
                             at<void>(gradient), at<float>(m), at<float>(q), at<float>(v), n,
                             step_of(how), noise_of(dice), at<std::uint8_t>(codes),
                             at<float>(scales));
    return finite;
}

// One parameter: format, type, target, n, payloads; the number of scales of a payload and the
// largest value allowed in one; divisor, stream.
using SumRow = std::tuple<int, int, Address, std::size_t, std::vector<std::pair<Address, Address>>,
                          std::size_t, float, float, bool>;

// Returns the index of the first row with a scale that no encoder writes: that row and all after it
// stay unwritten. Returns the number of rows if there is none.
std::size_t accumulate_codes_at(int set, const std::vector<SumRow>& rows) {
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    std::vector<Codes> list;
    for (std::size_t row = 0; row < rows.size(); ++row) {
        const auto& [format, type, target, n, payloads, count, most, divisor, stream] = rows[row];
        list.clear();
        for (const auto& [codes, scales] : payloads) {
            if (codecs.largest(Float::fp32, at<void>(scales), count, nullptr) > bits_of(most))
                return row;
            list.push_back({at<std::uint8_t>(codes), at<float>(scales)});
        }
        codecs.accumulate(static_cast<Format>(format), static_cast<Float>(type), at<void>(target),
                          n, list.data(), list.size(), divisor, stream);
    }
    return rows.size();
}

void add_codes_at(int set, int format, Address v, std::size_t n, Address codes, Address scales,
                  float factor) {
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    codecs.add(static_cast<Format>(format), at<float>(v), n,
               {at<std::uint8_t>(codes), at<float>(scales)}, factor);
}

std::tuple<double, double, std::size_t, bool> pack_signs_at(
    int set, int type, Address x, std::size_t n, Dice dice, bool throws, Address bits) {
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    const Noise noise = noise_of(dice);
    const SignSums sums = codecs.pack_signs(static_cast<Float>(type), at<void>(x), n,
                                            throws ? &noise : nullptr, at<std::uint8_t>(bits));
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

// Returns the largest magnitude (inf or NaN if x is not finite), and the sum of squares if
// requested.
std::pair<float, double> largest_at(int set, int type, Address x, std::size_t n, bool squares) {
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    double sum = 0.0;
    const std::uint32_t bits =
        codecs.largest(static_cast<Float>(type), at<void>(x), n, squares ? &sum : nullptr);
    return {float_of(bits), sum};
}

void strata_at(int set, Dice dice, std::size_t n, std::size_t k, Address places) {
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    strata(codecs, noise_of(dice), n, k, at<std::int32_t>(places));
}

void noise_at(int set, Dice dice, std::size_t first, std::size_t n, Address target) {
    const Codecs& codecs = codecs_of(set);
    const nb::gil_scoped_release release;
    codecs.noise(noise_of(dice), first, n, at<std::uint32_t>(target));
}

}  // namespace

void bind_codes(nb::module_& m) {
    m.def("encode", &encode_at);
    m.def("update_codes", &update_codes_at);
    m.def("adam", &adam_at);
    m.def("undo_adam", &undo_adam_at);
    m.def("adam_codes", &adam_codes_at);
    m.def("accumulate_codes", &accumulate_codes_at);
    m.def("add_codes", &add_codes_at);
    m.def("pack_signs", &pack_signs_at);
    m.def("accumulate_signs", &accumulate_signs_at);
    m.def("add_signs", &add_signs_at);
    m.def("largest", &largest_at);
    m.def("strata", &strata_at);
    m.def("noise", &noise_at);
}

}  // namespace gradwire
