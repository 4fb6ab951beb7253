// TensorFlow's names that nearly every op uses, in our namespace.
#ifndef HVD_SPARSE_OPS_NAMES_OP_H_
#define HVD_SPARSE_OPS_NAMES_OP_H_

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace hvds {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_NAMES_OP_H_
