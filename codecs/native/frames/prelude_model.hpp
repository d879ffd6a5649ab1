// What a prelude says, as plain numbers, for decoders that are not in this library: those of GPUs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "coder/tables.hpp"
#include "frames/delta_codec.hpp"
#include "kernels/codec_interface.hpp"
#include "neuzip/neuzip.hpp"

namespace deltahub {

// A context of these numbers: the first entry of its table, times 64, plus its shift.
struct PreludeModel {
  unsigned table_log = 0;
  std::vector<Entry> entries;  // decoding tables of 2^table_log entries, one after the other
  unsigned zero_bits = 0;      // trailing zero bits that all words share and that are not coded
  int n_low = 0;               // neuzip_lossless: mantissa bits that are not in the symbols

  // fm_delta only
  std::vector<std::uint32_t> classes;  // contexts of max_classes classes; the last one is repeated
  int last_class = 0, offset = 0;
  std::optional<std::uint32_t> row_scales;  // the context
  std::vector<std::int16_t> column_scales;
  int decay_bits = 0;
  std::uint32_t flags = 0;                // the context
  std::vector<std::uint8_t> decay_steps;  // words
  int floor = 0;
  bool is_product_rounded = false;
  std::vector<std::pair<std::uint32_t, unsigned>> left;  // (context, zero bits) of each component
  std::vector<std::int16_t> right;                       // rank x columns

  void set_entries(const Entry* strided, std::size_t n_tables, int log) {
    table_log = unsigned(log);
    for (std::size_t table = 0; table < n_tables; ++table)
      entries.insert(entries.end(), strided + table * table_stride,
                     strided + table * table_stride + (std::size_t(1) << log));
  }
  std::uint32_t packed(Context context) const {
    return context_table(context) << table_log << 6 | context_shift(context);
  }
};

// std::invalid_argument if no encoder writes such a prelude.
inline PreludeModel model_of_float_prelude(int kind, View prelude) {
  return with_words(word_kind(kind), [&]<class Words>(Words) -> PreludeModel {
    if constexpr (Words::exponent_bits == 0) {
      throw std::invalid_argument("integers have no exponents");
    } else {
      const auto parsed = parse_float_prelude<Words>(prelude.data(), prelude.size());
      require(parsed.has_value(), "no encoder writes such a prelude");
      DecodingTables tables;
      tables.append({parsed->table}, parsed->table_log,
                    entries_of(n_float_symbols(leading_bits<Words>(*parsed)),
                               float_symbols<Words>(*parsed)));
      PreludeModel model;
      model.set_entries(tables.entries(), 1, parsed->table_log);
      model.zero_bits = unsigned(parsed->zero_bits);
      model.n_low = Words::mantissa_bits - parsed->n_leading;
      return model;
    }
  });
}

// std::invalid_argument if no encoder writes such a prelude for a frame of rows x columns words.
inline PreludeModel model_of_delta_prelude(int kind, View prelude, std::size_t rows,
                                           std::size_t columns, int version) {
  return with_words(word_kind(kind), [&]<class Words>(Words) -> PreludeModel {
    const FrameModel<Words> frame = detail::frame_model<Words>(prelude, rows, columns, version);
    const Model& from = frame.model();
    PreludeModel model;
    model.set_entries(frame.entries(), from.tables.size(), from.table_log);
    model.zero_bits = from.stride;
    for (std::size_t z = 0; z < std::size_t(max_classes); ++z)
      model.classes.push_back(model.packed(from.classes[std::min(z, from.classes.size() - 1)]));
    model.last_class = int(from.classes.size()) - 1;
    model.offset = from.offset;
    if (from.row_scales) model.row_scales = model.packed(*from.row_scales);
    model.column_scales = frame.column_scales();
    model.decay_bits = from.decay_bits;
    model.flags = model.packed(from.flags);
    model.decay_steps.resize(frame.decay_steps().size() * sizeof(typename Words::Word));
    std::memcpy(model.decay_steps.data(), frame.decay_steps().data(), model.decay_steps.size());
    model.floor = from.floor;
    model.is_product_rounded = from.is_product_rounded;
    for (const Component& component : from.components)
      model.left.emplace_back(model.packed(component.left.context), component.left.stride);
    model.right.reserve(model.left.size() * columns);
    for (std::size_t k = 0; k < model.left.size(); ++k)
      for (std::size_t j = 0; j < columns; ++j) model.right.push_back(frame.right().number(k, j));
    return model;
  });
}

}  // namespace deltahub
