//! A device of OpenCL's with packets copied and in the host's memory, on PoCL.

use crate::engine::GpuEngine;
use crate::opencl::OpenClDevice;
use testudo_conformance::differential;
use testudo_crypto::{Engine, PortableEngine, self_test};

#[test]
fn packets_are_the_same_copied_and_in_the_hosts_memory() {
    for copies in [true, false] {
        let sizes = super::config().sizes();
        let wanted = Some("Portable Computing Language");
        let device = OpenClDevice::open_copying(wanted, 0, sizes, Some(copies)).unwrap();
        let mut engine = GpuEngine::over(Box::new(device), sizes);
        assert_eq!(engine.description().contains("in the host's memory"), !copies);
        assert_eq!(self_test(&mut engine), Ok(()));
        assert_eq!(differential(&mut engine, &mut PortableEngine::new(), 7), Ok(2_000));
    }
}
