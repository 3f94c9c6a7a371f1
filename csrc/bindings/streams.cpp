// Streams, rows and hash memory.
#include "../streams.hpp"

#include "../hash_memory.hpp"
#include "../ids.hpp"
#include "../rows.hpp"
#include "../sparse.hpp"
#include "bindings.hpp"

namespace gradwire {
namespace {

using Given = std::tuple<Address, Address, std::size_t, int>;  // places, values, count, type

Stream stream_of(const Given& given) {
    const auto& [place, value, count, type] = given;
    return {at<std::int32_t>(place), at<void>(value), count, static_cast<Float>(type)};
}

std::vector<std::size_t> split_at(int set, const Given& whole, std::uint32_t owners,
                                  std::uint32_t seed, Address place, Address value) {
    const nb::gil_scoped_release release;
    return streams_of(set).split(stream_of(whole), {owners, seed}, at<std::int32_t>(place),
                                 at<void>(value));
}

void flat_places_at(int set, Address place, std::size_t count, std::uint32_t owner,
                    std::uint32_t owners, std::uint32_t seed, Address out) {
    const nb::gil_scoped_release release;
    streams_of(set).flat_places(at<std::int32_t>(place), count, owner, {owners, seed},
                                at<std::int32_t>(out));
}

std::size_t merge_at(int set, const std::vector<Given>& payloads, std::size_t n, float divisor,
                     int type, Address place, Address value) {
    const nb::gil_scoped_release release;
    std::vector<SparsePayload> list;
    for (const Given& payload : payloads) {
        const Stream one = stream_of(payload);
        list.push_back({one.place, one.value, one.count, one.type});
    }
    return streams_of(set).merge(list.data(), list.size(), n, divisor, static_cast<Float>(type),
                                 at<std::int32_t>(place), at<void>(value), marked_tile());
}

void put_in_place_at(const Given& stream, int type, Address out) {
    const nb::gil_scoped_release release;
    put_in_place(stream_of(stream), static_cast<Float>(type), at<void>(out));
}

std::size_t top_of_two_at(int set, const Given& a, const Given& b, std::size_t k, Address place,
                          int type, Address value) {
    const nb::gil_scoped_release release;
    return top_of_two(streams_of(set), stream_of(a), stream_of(b), k, at<std::int32_t>(place),
                      static_cast<Float>(type), at<void>(value));
}

void contained_at(Address place, std::size_t count, Address among, std::size_t others,
                  Address out) {
    const nb::gil_scoped_release release;
    contained(at<std::int32_t>(place), count, at<std::int32_t>(among), others,
              at<std::uint8_t>(out));
}

std::size_t nonzero_rows_at(Address x, std::size_t rows, std::size_t row_bytes, Address ids) {
    const nb::gil_scoped_release release;
    return nonzero_rows(at<void>(x), rows, row_bytes, at<std::int32_t>(ids));
}

void gather_stripes_at(Address x, Address ids, std::size_t count, std::size_t row_bytes,
                       const std::vector<std::size_t>& bounds, Address out) {
    const nb::gil_scoped_release release;
    gather_stripes(at<void>(x), {at<std::int32_t>(ids), count, row_bytes}, bounds, at<void>(out));
}

void scatter_stripes_at(Address x, Address ids, std::size_t count, std::size_t row_bytes,
                        const std::vector<std::size_t>& bounds, Address stripes) {
    const nb::gil_scoped_release release;
    scatter_stripes(at<void>(x), {at<std::int32_t>(ids), count, row_bytes}, bounds,
                    at<void>(stripes));
}

using GivenIds = std::tuple<Address, std::size_t, bool>;  // ids, count, whether of 64 bits

Ids ids_of(const GivenIds& given) {
    const auto& [id, count, is_wide] = given;
    return {at<void>(id), count, is_wide};
}

std::size_t order_rows_at(const std::vector<GivenIds>& lists, const std::vector<Address>& rows,
                          std::size_t row_bytes, Address each, Address row, Address end) {
    const nb::gil_scoped_release release;
    std::vector<IdsOfRows> given;
    for (std::size_t i = 0; i < lists.size(); ++i) {
        given.push_back({ids_of(lists[i]), at<char>(rows[i])});
    }
    return order_rows(given, row_bytes, at<std::int64_t>(each), at<const void*>(row),
                      at<std::int64_t>(end));
}

std::size_t single_ids_at(const std::vector<GivenIds>& lists, Address each, Address single,
                          Address places) {
    const nb::gil_scoped_release release;
    std::vector<Ids> given;
    for (const GivenIds& list : lists) given.push_back(ids_of(list));
    return single_ids(given, at<std::int32_t>(each), at<std::uint8_t>(single),
                      at<std::int64_t>(places));
}

void sum_runs_at(int set, int type, Address rows, Address ends, std::size_t runs,
                 std::size_t width, float divisor, int out_type, Address out) {
    const nb::gil_scoped_release release;
    streams_of(set).sum_runs(static_cast<Float>(type),
                             {at<const void*>(rows), at<std::int64_t>(ends), runs}, width,
                             divisor, static_cast<Float>(out_type), at<void>(out));
}

std::tuple<std::vector<std::size_t>, std::size_t, std::size_t> hash_partition_at(
    Address index, std::size_t count, std::size_t owners, const std::vector<std::uint32_t>& seeds,
    std::size_t parallel, std::size_t serial, unsigned threads, Address out) {
    const nb::gil_scoped_release release;
    auto [counts, serially, growths] =
        hash_partition(at<std::int32_t>(index), count, owners, seeds, {parallel, serial}, threads,
                       at<std::int32_t>(out));
    return {std::move(counts), serially, growths};
}

}  // namespace

void bind_streams(nb::module_& m) {
    m.def("split", &split_at);
    m.def("flat_places", &flat_places_at);
    m.def("merge", &merge_at);
    m.def("put_in_place", &put_in_place_at);
    m.def("top_of_two", &top_of_two_at);
    m.def("contained", &contained_at);
    m.def("nonzero_rows", &nonzero_rows_at);
    m.def("gather_stripes", &gather_stripes_at);
    m.def("scatter_stripes", &scatter_stripes_at);
    m.def("order_rows", &order_rows_at);
    m.def("single_ids", &single_ids_at);
    m.def("sum_runs", &sum_runs_at);
    m.def("hash_partition", &hash_partition_at);
}

}  // namespace gradwire
