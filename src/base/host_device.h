// WINNOW_HOST_DEVICE before a function makes it one of the device too where nvcc compiles it: the
// formats and polynomials that define an operation's bits are written once.
#pragma once

#ifdef __CUDACC__
#define WINNOW_HOST_DEVICE __host__ __device__
#else
#define WINNOW_HOST_DEVICE
#endif
