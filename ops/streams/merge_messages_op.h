// How ops read messages of sparse streams, and the errors for messages that cannot be read.
#ifndef HVD_SPARSE_OPS_MERGE_MESSAGES_OP_H_
#define HVD_SPARSE_OPS_MERGE_MESSAGES_OP_H_

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "merge.h"
#include "../common/op_support.h"

namespace hvds {

constexpr int64_t kMaxElements = std::numeric_limits<int32_t>::max();
constexpr int64_t kAlignment = 8;  // bytes, of a message

inline absl::Status check_scalar(OpKernelContext* context, int number, const char* name) {
  if (context->input(number).dims() == 0) return absl::OkStatus();
  return invalid_argument("Expected ", name, " as a scalar, got shape ", context->input(number).shape().DebugString());
}

inline absl::Status check_rows(const hvds_rows& rows) {
  if (rows.size >= 0 && rows.width >= 1 && rows.width <= kMaxElements && rows.size <= kMaxElements / rows.width) {
    return absl::OkStatus();
  }
  return invalid_argument("Expected a size of at least 0 and a width of at least 1, together fewer than 2^31 elements, "
                          "got size ", rows.size, " and width ", rows.width);
}

// Reads the size and the width, inputs 1 and 2.
inline absl::Status rows_of(OpKernelContext* context, tensorflow::DataType type, hvds_rows* rows) {
  TF_RETURN_IF_ERROR(check_scalar(context, 1, "size"));
  TF_RETURN_IF_ERROR(check_scalar(context, 2, "width"));
  *rows = {context->input(1).scalar<int64_t>()(), context->input(2).scalar<int64_t>()(), dtype_of(type)};
  return check_rows(*rows);
}

inline std::string what_is_wrong(hvds_stream_fault fault, const int32_t* words, int64_t length, const hvds_rows& rows,
                                 const hvds_stream& stream, int64_t at) {
  if (fault == HVDS_STREAM_FORM) {
    return absl::StrCat("expected the form 0 (sparse) or 1 (dense) in its first word, got ", words[0]);
  }
  if (fault == HVDS_STREAM_COUNT) {
    return absl::StrCat("expected ", words[0] == 1 ? "all " : "at most ", rows.size, " rows, got ", stream.count);
  }
  if (fault == HVDS_STREAM_LENGTH && length < 2) {
    return absl::StrCat("expected at least 2 words, got ", length);
  }
  if (fault == HVDS_STREAM_LENGTH) {
    return absl::StrCat("expected ", stream.words, " words for ", stream.count, " rows of ", rows.width,
                        " elements, got ", length);
  }
  if (fault == HVDS_STREAM_ORDER) {
    return absl::StrCat("expected ascending, unique indices, got ", stream.indices[at - 1], " before ",
                        stream.indices[at], " at position ", at);
  }
  return absl::StrCat("expected indices in [0, ", rows.size, "), got ", stream.indices[at], " at position ", at);
}

// Splits messages that lie one after the other in a tensor.
class Messages {
 public:
  // Starts at the first word; copies the tensor if it is not aligned as messages must be.
  absl::Status open(OpKernelContext* context, const Tensor& words) {
    if (!tensorflow::TensorShapeUtils::IsVector(words.shape())) {
      return invalid_argument("Expected messages [words], got shape ", words.shape().DebugString());
    }
    length_ = words.NumElements();
    begin_ = words.flat<int32_t>().data();
    if (reinterpret_cast<uintptr_t>(begin_) % kAlignment == 0) return absl::OkStatus();
    TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_INT32, words.shape(), &aligned_));
    std::memcpy(aligned_.data(), begin_, static_cast<size_t>(length_) * sizeof(int32_t));
    begin_ = aligned_.flat<int32_t>().data();
    return absl::OkStatus();
  }

  bool at_end() const { return at_ == length_; }

  absl::Status skip(int64_t words) {
    if (words > length_ - at_) {
      return invalid_argument("Expected ", words, " words before message ", streams_.size(), ", from word ", at_,
                              " on, got ", length_ - at_);
    }
    at_ += words;
    return absl::OkStatus();
  }

  absl::Status read(const hvds_rows& rows) {
    hvds_stream stream;
    int64_t position = 0;
    const int32_t* words = begin_ + at_;
    const hvds_stream_fault fault = hvds_stream_read(words, length_ - at_, &rows, &stream, &position);
    if (fault != HVDS_STREAM_OK) {
      return invalid_argument("Message ", streams_.size(), ", from word ", at_, " of ", length_, " on: ",
                              what_is_wrong(fault, words, length_ - at_, rows, stream, position),
                              "; size, width and dtype must be the sender's");
    }
    at_ += stream.words;
    streams_.push_back(stream);
    return absl::OkStatus();
  }

  absl::Status close() const {
    if (at_end()) return absl::OkStatus();
    return invalid_argument("Expected ", streams_.size(), " messages of ", at_, " words together, got ", length_,
                            " words; size, width and dtype must be the sender's");
  }

  const hvds_stream* streams() const { return streams_.data(); }
  int64_t number() const { return static_cast<int64_t>(streams_.size()); }

 private:
  const int32_t* begin_ = nullptr;
  int64_t length_ = 0;
  int64_t at_ = 0;
  std::vector<hvds_stream> streams_;
  Tensor aligned_;
};

inline absl::Status read_one(OpKernelContext* context, const hvds_rows& rows, Messages* messages) {
  TF_RETURN_IF_ERROR(messages->open(context, context->input(0)));
  TF_RETURN_IF_ERROR(messages->read(rows));
  return messages->close();
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_MERGE_MESSAGES_OP_H_
