//! The portable engine passes the suite.

use testudo_crypto::{Engine, PortableEngine};

#[test]
fn the_portable_engine_conforms() {
    let mut make = || -> Box<dyn Engine> { Box::new(PortableEngine::new()) };
    testudo_conformance::run(&mut make).assert_passed();
}
