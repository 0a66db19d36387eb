//! The engine on GPUs: batches of packets, done by one launch of a kernel each, through OpenCL or CUDA, whose
//! libraries are opened at run time.
//!
//! ```text
//!   Job ─► arena (pinned): packet's copy, room for a digest ─┐  one write, one launch, one read
//!          plan: bins, each with the jobs of one kind  ─┴─► device ─► poll: compared, copied back ─► Job
//! ```
//!
//! **Bins.** A launch serves every suite: jobs of one kind (cipher, integrity algorithm, direction, length of
//! the key) that come one after the other are cut into bins of as many as a work-group has lanes for. The
//! gateway's packet scheduler submits jobs sorted by suite and length, so that a group's lanes end together
//! (PIPSEA 3.2); others get the same answers from more bins.
//!
//! **Lanes of a packet.** Where the mode allows it (CBC when opening, CTR, GCM) several lanes share a packet:
//! how many follows from suite, direction and length, is a power of two, and is the same in a bin (`parts`).
//! What HMAC does is one lane's; in that step neighbouring lanes have a packet each.
//!
//! **Batches.** Two are with the device at a time, one being copied while another is computed. A batch goes
//! when it is full or flushed; while two are away no job is taken.
//!
//! **Nothing is believed.** Packets are copied, and copied back only when all is right: ICVs are compared
//! here, in constant time, and if anything goes wrong the packet stays as it was. Each job has a mark,
//! another in each launch, which is written after its last lane has ended: what has not been computed is
//! found out. After a
//! failure, a wrong mark or 750 ms without an answer, in which somebody looked for it, the device gets no
//! more; what it had ends as faults, for the next engine. So do the jobs of a device that is late, after 40
//! ms or twice what such a batch took of late: they are taken back, what comes of them is discarded, and the
//! device gets others when it has ended those (`engine::recall`). While a call of the driver does not return
//! another thread can take them back (`under_way`).
//!
//! **Known answers** ride with packets, one for 1,024 of a kind (`checks`). A wrong one takes the device out
//! of service before a packet of its batch goes back.
//!
//! **Keys** are expanded on the device, in a slot of its memory, and zeroed there when they are removed and
//! when the engine ends. They reach it as arguments of a launch; which copies of these a driver keeps, nobody
//! knows.
//!
//! **The kernel** is one source for OpenCL C, CUDA C++ and, for tests, C++ on the CPU ([`SOURCE`]). It is not
//! constant in time: its tables are indexed by secrets, and who shares the GPU may measure that.
//!
//! Layers: `work` says what a suite is to the kernel, `place` lays a job out and ends it, `parts` says how
//! many lanes it gets, `batch` gathers jobs and plans bins, `under_way` has the jobs themselves, `device` is
//! what runs them (`opencl`, `cuda`; in tests the source compiled as C++), `engine` is the safe
//! [`Engine`](testudo_crypto::Engine).
//!
//! [`NvidiaEnergy`] is apart from all that: what NVIDIA's GPUs have taken, for measurements.
//!
//! Several devices are as many of these engines, `several`, which all have every key.
//!
//! **Frames.** Where [`GpuConfig::headers`] says so, jobs may come without SPI, number, IV and trailer, which
//! the kernel writes in a step before all others (`framed`). The number is the caller's, and the nonce is
//! made of it here, as ever: the kernel copies it into the packet.
//!
//! [`OneGpu`] times launches apart from a gateway, or is a device that does nothing (`idle`), and
//! [`kernel_work`] says what a packet is to the kernel, all for measurements.

mod batch;
mod checks;
mod cuda;
mod device;
mod engine;
mod framed;
mod idle;
mod open;
mod opencl;
mod parts;
mod place;
mod several;
#[cfg(test)]
mod tests;
mod under_way;
mod work;

pub use cuda::NvidiaEnergy;
pub use engine::LaunchTimes;
pub use open::{Api, Devices, GpuConfig, Interface, OneGpu, devices, open, open_at};
pub use work::{KernelWork, kernel_work};

/// The engine's name in configuration and errors.
pub const NAME: &str = "gpu";

/// The kernels, in parts that are one source when joined.
pub const SOURCE: [&str; 6] = [
    include_str!("../kernel/portable.cl"),
    include_str!("../kernel/tables.cl"),
    include_str!("../kernel/ciphers.cl"),
    include_str!("../kernel/hashes.cl"),
    include_str!("../kernel/jobs.cl"),
    include_str!("../kernel/keys.cl"),
];
