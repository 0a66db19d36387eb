//! Devices by CUDA, where there is a driver of NVIDIA's without OpenCL: `libcuda` and NVRTC, its compiler,
//! are opened at run time.

mod compiler;
mod device;
mod driver;
mod library;
mod nvml;

#[cfg(test)]
pub(crate) use compiler::{Compiler, Image};
pub(crate) use device::{CudaDevice, Libraries};
pub use nvml::NvidiaEnergy;
