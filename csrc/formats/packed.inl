// Codes of one, two or four bits, packed in blocks of 512.
namespace gradwire {
namespace {

// Part p of a block is stored in the bits from p · width on of every byte. Format::meaning(code) is
// the value of a code as a multiple of the scale.
template <class Format, int width>
struct Packed {
    static constexpr std::size_t block = 512;
    static constexpr std::size_t parts = 8 / width;
    static constexpr std::size_t bytes(std::size_t m) { return (m + parts - 1) / parts; }

    static void pack(std::uint8_t* code, std::size_t m, std::uint8_t* out) {
        const std::size_t h = bytes(m);
        for (std::size_t i = m; i < h * parts; ++i) code[i] = 0;
        for (std::size_t j = 0; j < h; ++j) {
            std::uint32_t byte = 0;
            for (std::size_t p = 0; p < parts; ++p)
                byte |= std::uint32_t{code[p * h + j]} << (p * width);
            out[j] = static_cast<std::uint8_t>(byte);
        }
    }

    static float value(Block in, std::size_t m, std::size_t i) {
        const std::size_t h = bytes(m);
        const int code = in.codes[i % h] >> (i / h * width) & ((1 << width) - 1);
        return Format::meaning(code) * in.scale;
    }

    template <class Blocks, class Sink>
    static void add(std::size_t payloads, Blocks at, Sink sink) {
        constexpr int U = 8 / parts;
        constexpr std::size_t h = block / parts;
        float meaning[16];
        for (int code = 0; code < 16; ++code)
            meaning[code] = Format::meaning(code & ((1 << width) - 1));
        for (std::size_t j = 0; j < h; j += U * W) {
            Vector all[U][parts];
#pragma GCC unroll 8
            for (int u = 0; u < U; ++u)
#pragma GCC unroll 8
                for (std::size_t p = 0; p < parts; ++p) all[u][p] = sink.open(p * h + j + u * W);
            for (std::size_t r = 0; r < payloads; ++r) {
                const Block in = at(r);
                const Table values = table(meaning, in.scale);
                fetch_ahead(in.codes + j);
#pragma GCC unroll 8
                for (int u = 0; u < U; ++u) {
                    const Small codes = small(in.codes + j + u * W);
#pragma GCC unroll 8
                    for (std::size_t p = 0; p < parts; ++p)
                        all[u][p] = gradwire::add(
                            all[u][p], lookup(values, shifted(codes, static_cast<int>(p) * width)));
                }
            }
#pragma GCC unroll 8
            for (int u = 0; u < U; ++u)
#pragma GCC unroll 8
                for (std::size_t p = 0; p < parts; ++p) sink.close(p * h + j + u * W, all[u][p]);
        }
    }
};

}  // namespace
}  // namespace gradwire
