// The fields of a prelude of fm_delta, read and written as in codecs/spec/fm_delta.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/words.hpp"
#include "coder/tables.hpp"
#include "fm_delta/stride.hpp"
#include "kernels/prediction/prediction.hpp"

namespace deltahub {

inline constexpr int max_classes = 64;
inline constexpr int max_rank = 64;
inline constexpr int max_decay_bits = 10;
inline constexpr int scale_end = 8192;  // scales and the offset lie in [-scale_end, scale_end)
inline constexpr unsigned side_value_bits = 16;
// Versions of fm_delta. Only frames with a stride have version 2.
inline constexpr int first_delta_version = 1, strided_delta_version = 2;

// One factor of a component. Its numbers are multiples of 2^stride and are coded divided by it.
struct Factor {
  Context context = 0;
  unsigned stride = 0;
};
struct Component {
  Factor left, right;
};

struct Model {
  unsigned stride = 0;  // see fm_delta/stride.hpp
  int table_log = max_table_log;
  std::vector<Frequencies> tables;
  std::vector<Context> classes;
  int offset = 0;
  std::optional<Context> row_scales, column_scales;
  int decay_bits = 0;  // mantissa bits that choose the step of a word in a weight-decay row
  Context flags = 0, decay_steps = 0;
  int floor = 0;                      // the exponent field of the product's unit
  bool is_product_rounded = false;    // to the precision of the dtype, before it is added
  std::vector<Component> components;  // their number is the rank

  int rank() const { return int(components.size()); }
  int version() const { return stride > 0 ? strided_delta_version : first_delta_version; }
  bool has_column_stream() const { return column_scales || decay_bits > 0 || rank() > 0; }
};

// stream_begin: the byte of the prelude at which the column stream begins.
struct ParsedPrelude {
  Model model;
  std::size_t stream_begin = 0;
};

namespace detail {

inline void put_context(BitWriter& out, Context context) {
  out.put(context_table(context), 4);
  out.put(context_shift(context), 6);
}

// Reads contexts and collects the tables that they use in the bits of `used`.
struct ContextReader {
  BitReader& in;
  unsigned n_tables;
  unsigned used = 0;
  bool is_sound = true;

  Context get(unsigned number_bits) {
    const unsigned table = in.get(4), shift = in.get(6);
    if (table >= n_tables || shift >= number_bits) is_sound = false;
    used |= 1u << table;
    return context_of(table, shift);
  }
};

}  // namespace detail

inline std::vector<std::uint8_t> write_fields(const Model& model) {
  using detail::put_context;
  BitWriter out;
  if (model.stride > 0) out.put(model.stride, 6);
  out.put(unsigned(model.table_log), 4);
  out.put(model.tables.size() - 1, 4);
  for (const Frequencies& table : model.tables) write_frequencies(out, table, model.table_log, 2);
  out.put(model.classes.size() - 1, 6);
  for (std::size_t z = 0; z < model.classes.size(); ++z) {
    const bool is_same = z > 0 && model.classes[z] == model.classes[z - 1];
    if (z > 0) out.put(is_same, 1);
    if (!is_same) put_context(out, model.classes[z]);
  }
  out.put(std::uint64_t(model.offset) & 0xffff, 16);
  for (const auto& scales : {model.row_scales, model.column_scales}) {
    out.put(scales.has_value(), 1);
    if (scales) put_context(out, *scales);
  }
  out.put(unsigned(model.decay_bits), 4);
  if (model.decay_bits > 0) {
    put_context(out, model.flags);
    put_context(out, model.decay_steps);
  }
  out.put(model.components.size(), 7);
  if (model.rank() > 0) {
    out.put(unsigned(model.floor), 8);
    out.put(model.is_product_rounded, 1);
  }
  for (const Component& component : model.components) {
    for (const Factor& factor : {component.left, component.right}) {
      put_context(out, factor.context);
      out.put(factor.stride, 4);
    }
  }
  return out.take();
}

// Parses the fields of a prelude; nothing if no encoder writes such fields. rows, columns: of the
// frame. A rank above either is refused, so that no prelude asks for more memory than its frame.
template <class Words>
std::optional<ParsedPrelude> parse_fields(const std::uint8_t* bytes, std::size_t size,
                                          std::size_t rows, std::size_t columns,
                                          int version) {
  BitReader in(bytes, size);
  ParsedPrelude parsed;
  Model& model = parsed.model;
  if (version == strided_delta_version) {
    model.stride = in.get(6);
    if (model.stride < 1 || model.stride > max_stride<Words>) return {};
  }
  model.table_log = int(in.get(4));
  if (model.table_log < min_table_log || model.table_log > max_table_log) return {};
  model.tables.resize(in.get(4) + 1);
  for (Frequencies& table : model.tables)
    if (!read_frequencies(in, table, n_delta_symbols, model.table_log, 2)) return {};
  detail::ContextReader contexts{.in = in, .n_tables = unsigned(model.tables.size())};
  model.classes.resize(in.get(6) + 1);
  for (std::size_t z = 0; z < model.classes.size(); ++z) {
    const bool is_same = z > 0 && in.get(1);
    model.classes[z] =
        is_same ? model.classes[z - 1] : contexts.get(Words::word_bits - model.stride);
    if (z > 0 && !is_same && model.classes[z] == model.classes[z - 1]) return {};
  }
  model.offset = std::int16_t(in.get(16));
  if (model.offset < -scale_end || model.offset >= scale_end) return {};
  if (in.get(1)) model.row_scales = contexts.get(side_value_bits);
  if (in.get(1)) model.column_scales = contexts.get(side_value_bits);
  model.decay_bits = int(in.get(4));
  if (model.decay_bits > std::min(max_decay_bits, Words::mantissa_bits)) return {};
  if (model.decay_bits > 0) {
    model.flags = contexts.get(side_value_bits);
    model.decay_steps = contexts.get(Words::word_bits);
  }
  const unsigned rank = in.get(7);
  if (rank > std::min<std::size_t>({max_rank, rows, columns})) return {};
  if (rank > 0 && guard_bits(Words::mantissa_bits) == 0) return {};
  if (rank > 0) {
    model.floor = int(in.get(8));
    if (model.floor < 1 || model.floor > (1 << Words::exponent_bits) - 2) return {};
    model.is_product_rounded = in.get(1);
    model.components.resize(rank);
    for (Component& component : model.components) {
      for (Factor* factor : {&component.left, &component.right}) {
        factor->context = contexts.get(side_value_bits);
        factor->stride = in.get(4);
      }
    }
  }
  if (!in.align() || !contexts.is_sound || contexts.used != (1u << model.tables.size()) - 1)
    return {};
  parsed.stream_begin = in.byte_position();
  if (!model.has_column_stream() && parsed.stream_begin != size) return {};
  return parsed;
}

}  // namespace deltahub
